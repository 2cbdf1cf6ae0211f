"""Every third-party model, by name."""

from functools import cache

from benchmarks.third_party.zoo import ThirdPartyModel
from tests.torchvision_operators import declare_operators


@cache
def all_models() -> dict[str, ThirdPartyModel]:
    declare_operators()
    from benchmarks.third_party.text_models import text_models
    from benchmarks.third_party.torch_vision_models import timm_models, torchvision_models
    from benchmarks.third_party.vision_models import sound_models, vision_models

    every = [
        *text_models(),
        *vision_models(),
        *sound_models(),
        *torchvision_models(),
        *timm_models(),
    ]
    return {model.name: model for model in every}


def model_named(name: str) -> ThirdPartyModel:
    return all_models()[name]
