"""Language models: supervised fine-tuning, policy gradients, distillation."""
