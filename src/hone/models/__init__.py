"""Networks: the decoder transformer, Hugging Face folders and tokenizers in and out, multi-layer perceptrons.

Belongs here: what maps inputs to numbers. Does not: losses, sampling, data.
"""
