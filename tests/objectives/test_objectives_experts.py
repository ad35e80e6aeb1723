"""Load of experts: the loss against transformers, its least value, and the bias by hand."""

import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hone.objectives.value import balanced_bias, load_balance


def load_of(logits: torch.Tensor, per_token: int) -> torch.Tensor:
    """Share of the tokens that each expert of a layer is chosen for `[L, E]`."""
    chosen = logits.topk(per_token, dim=-1).indices
    return torch.nn.functional.one_hot(chosen, logits.shape[-1]).sum(dim=(0, 2)) / len(logits)


def test_the_mean_over_tokens_is_the_loss_of_transformers_for_each_layer():
    logits = torch.randn(40, 3, 6, generator=torch.Generator().manual_seed(0))
    for per_token in (1, 2, 4):
        expected = [load_balancing_loss_func((logits[:, layer],), 6, per_token) for layer in range(3)]
        found = load_balance(logits, load_of(logits, per_token)).mean()
        torch.testing.assert_close(found, torch.stack(expected).mean())


def test_an_equal_load_is_the_number_of_experts_per_token_and_a_busy_expert_costs_more():
    even = load_balance(torch.zeros(4, 1, 5), torch.full((1, 5), 2 / 5))
    torch.testing.assert_close(even, torch.full((4,), 2.0))
    one = torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(load_balance(torch.tensor([[[50.0, 0.0]]]), one), torch.tensor([2.0]))


def test_the_gradient_lowers_the_score_of_the_busy_expert():
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    load_balance(logits, torch.tensor([[0.8, 0.1, 0.1]])).sum().backward()
    assert logits.grad[0, 0, 0] > 0 > logits.grad[0, 0, 1]


def test_the_bias_moves_by_the_rate_towards_the_mean_load():
    bias = balanced_bias(torch.tensor([0.5, 0.0, 0.0]), torch.tensor([6.0, 2.0, 4.0]), rate=0.01)
    torch.testing.assert_close(bias, torch.tensor([0.49, 0.01, 0.0]))
