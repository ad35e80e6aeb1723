"""A training service: tenants train adapters of one base model from loops of their own, over Tinker's protocol."""
