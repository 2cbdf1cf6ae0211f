from tests.torchvision_operators import declare_operators

declare_operators()  # before the frameworks, which import torchvision where it is installed
