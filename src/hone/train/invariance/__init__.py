"""Checks that a loss does not depend on micro-batches, order, packing or ranks."""
