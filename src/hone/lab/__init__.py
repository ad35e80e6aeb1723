"""The lab: one-minute experiments that show the effect of an idea of reinforcement learning.

Small exact problems, their results, and their plots. Experiments use the losses and credit functions of training, never
copies.
"""
