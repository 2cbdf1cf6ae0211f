"""The models behind a learned simulator: `learned_model` is their contract and makes them from
recipes. They import networks/ and features/."""
