"""The gradient learner: minibatches, micro-batches, flat parameters, Adam, natural gradients."""
