"""The decoder transformer, its kernels, tokenizers and Hugging Face folders."""
