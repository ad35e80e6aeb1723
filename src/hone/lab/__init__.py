"""The lab: one-minute experiments that show what an idea of reinforcement learning does.

Belongs here: small exact problems, what was found in them, and its picture. Experiments use the losses and the credit
that training uses, never a copy of them.
"""
