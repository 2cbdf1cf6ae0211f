"""The models behind a learned simulator: `learned_model` is their contract, `model_factory` makes
them. They import networks/ and features/."""
