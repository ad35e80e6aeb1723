"""Networks: the decoder transformer with Hugging Face folders and tokenizers, and multi-layer perceptrons for control.

Losses, sampling and data are elsewhere.
"""
