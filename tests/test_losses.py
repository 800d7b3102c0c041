"""The hybrid loss against numbers worked by hand, its limits, and trl's own functions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from trl.experimental.sdpo import loss_utils as trl_losses

from rapo_lib.training import losses


def test_advantages_by_hand():
    # scores 1, 0, 0, -1: mean 0, unbiased std sqrt(2/3) = 0.81650
    scores = torch.tensor([[1.0, 0.0, 0.0, -1.0]])
    expected = torch.tensor([[1.0, 0.0, 0.0, -1.0]]) / (math.sqrt(2 / 3) + 1e-4)
    assert torch.allclose(losses.group_advantages(scores), expected, atol=1e-6)


@pytest.mark.parametrize("value", [0.35, 0.1, 1e6, -7.3])
def test_equal_scores_give_exactly_zero(value):
    assert losses.group_advantages(torch.full((2, 7), value)).eq(0).all()


def test_an_abstained_group_is_zero_and_leaves_others_alone():
    nan = float("nan")
    both = losses.group_advantages(torch.tensor([[nan, nan, nan], [1.0, 2.0, 3.0]]))
    assert both[0].eq(0).all()
    assert torch.equal(both[1:], losses.group_advantages(torch.tensor([[1.0, 2.0, 3.0]])))


def test_one_outlier_is_bounded():
    # [.35]*7 + [.95]: the outlier gets (G-1)/sqrt(G) = 2.4749 standard deviations, never thousands
    a = losses.group_advantages(torch.tensor([[0.35] * 7 + [0.95]]))
    assert a[0, 7].item() == pytest.approx(7 / math.sqrt(8), rel=1e-3)
    assert a[0, :7].abs().max() < 0.36


def test_policy_term_by_hand():
    # rho = 2 with A = 1 is clipped to 1.2; with A = -1 the unclipped -2 is the minimum, so the loss is 2
    logp, old = torch.log(torch.tensor([[2.0], [2.0]])), torch.zeros(2, 1)
    term = losses.policy_term(logp, old, torch.tensor([1.0, -1.0]), (0.2, 0.2))
    assert term.flatten().tolist() == pytest.approx([-1.2, 2.0])


def test_on_policy_gradient_is_minus_advantage():
    logp = torch.zeros(1, 3, requires_grad=True)
    losses.policy_term(logp, logp.detach(), torch.tensor([0.7]), (0.2, 0.2)).sum().backward()
    assert logp.grad.flatten().tolist() == pytest.approx([-0.7] * 3)


def test_an_advantage_for_each_token_by_hand():
    # on policy, rho = 1: the loss is -A token by token; one advantage for a reply is the same for all its tokens
    logp = torch.tensor([[0.3, 0.6]]).log()
    term = losses.policy_term(logp, logp, torch.tensor([[0.5, -2.0]]), (0.2, 0.2))
    assert term.tolist() == [[-0.5, 2.0]]
    whole, spread = torch.tensor([0.7]), torch.tensor([[0.7, 0.7]])
    assert torch.equal(
        losses.policy_term(logp, logp - 0.4, whole, (0.2, 0.2)),
        losses.policy_term(logp, logp - 0.4, spread, (0.2, 0.2)),
    )


def test_mixed_advantages_by_hand():
    # w = 1/4: A = 3/4 A_GRPO + 1/4 (log q - log pi); token 1: log(0.4 / 0.2) = log 2, token 2: log(0.1 / 0.4) = -log 4
    logp, teacher = torch.tensor([[0.2, 0.4], [0.2, 0.4]]).log(), torch.tensor([[0.4, 0.1], [0.4, 0.1]]).log()
    heard = torch.tensor([[1.0, 1.0], [0.0, 0.0]])  # nothing was said about the second reply
    mixed = losses.mixed_advantages(torch.tensor([1.0, -2.0]), logp, teacher, weight=0.25, heard=heard)
    expected = [0.75 + 0.25 * math.log(2), 0.75 - 0.25 * math.log(4), -1.5, -1.5]
    assert mixed.flatten().tolist() == pytest.approx(expected)


def test_mixed_advantages_have_the_two_signals_as_limits():
    logp, teacher = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    a, heard = torch.tensor([0.3, -0.6]), torch.ones(2, 3)
    scalar = losses.mixed_advantages(a, logp, teacher, weight=0.0, heard=heard)
    verbal = losses.mixed_advantages(a, logp, teacher, weight=1.0, heard=heard)
    assert torch.equal(scalar, a[:, None].expand(2, 3)) and torch.equal(verbal, teacher - logp.detach())
    assert not verbal.requires_grad


def test_purely_verbal_advantages_descend_the_reverse_kl():
    """w = 1: the expected gradient over y ~ pi is that of KL(pi || q), summed here over the whole vocabulary."""
    torch.manual_seed(0)
    logits = torch.randn(1, 1, 5, dtype=torch.float64, requires_grad=True)
    q = torch.log_softmax(torch.randn(1, 1, 5, dtype=torch.float64), dim=-1)
    pi = torch.log_softmax(logits, dim=-1)
    (pi.exp() * (pi - q)).sum().backward()
    wanted, expected = logits.grad.clone(), torch.zeros_like(logits)
    for y in range(5):
        logits.grad = None
        logp = losses.token_logp(logits, torch.tensor([[y]]))
        a = losses.mixed_advantages(torch.zeros(1), logp, q[..., y], weight=1.0, heard=torch.ones(1, 1))
        losses.policy_term(logp, logp.detach(), a, (0.2, 0.2)).sum().backward()
        expected += logp.exp().item() * logits.grad
    assert torch.allclose(wanted, expected, atol=1e-12)


def test_kl_by_hand():
    # pi(y) = 0.5, start(y) = 0.25: r = 1/2, r - 1 - log r = -1/2 + log 2; sampled by pi_old(y) = 0.25: rho = 2
    logp, start = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert losses.kl_term(logp, logp, start).item() == pytest.approx(math.log(2) - 0.5, abs=1e-6)
    assert losses.kl_term(logp, start, start).item() == pytest.approx(2 * (math.log(2) - 0.5), abs=1e-6)


def test_kl_is_right_in_the_mean_with_its_gradient():
    """Over y ~ pi_old, here the whole vocabulary, value and gradient are those of KL(pi || start)."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    pi, old, start = (torch.log_softmax(x, dim=-1) for x in (logits, *torch.randn(2, 6, dtype=torch.float64)))
    exact = (pi.exp() * (pi - start)).sum()
    estimate = (old.exp() * losses.kl_term(pi, old, start)).sum()
    assert estimate.item() == pytest.approx(exact.item())
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (found,) = torch.autograd.grad(estimate, logits)
    assert torch.allclose(found, wanted, atol=1e-12)


def test_kl_is_exactly_zero_at_the_start_and_pulls_nowhere():
    logp = torch.randn(3, 4, requires_grad=True)
    kl = losses.kl_term(logp, logp.detach(), logp)
    kl.sum().backward()
    assert kl.eq(0).all() and logp.grad.eq(0).all()


def test_jensen_shannon_by_hand():
    # s = (1/2, 1/2), q = (1/4, 3/4), a = 1/2: m = (3/8, 5/8)
    s, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    kl_s = 0.5 * math.log(0.5 / 0.375) + 0.5 * math.log(0.5 / 0.625)
    kl_q = 0.25 * math.log(0.25 / 0.375) + 0.75 * math.log(0.75 / 0.625)
    assert losses.jensen_shannon(s, q, 0.5).item() == pytest.approx(0.5 * kl_s + 0.5 * kl_q, abs=1e-6)
    # a = 1: KL(s || q) = 0.5 ln 2 + 0.5 ln(2/3); a = 0: KL(q || s) = 0.25 ln(1/2) + 0.75 ln(3/2)
    assert losses.jensen_shannon(s, q, 1.0).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)
    assert losses.jensen_shannon(s, q, 0.0).item() == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-6
    )


def test_tail_bucket_completes_the_distribution():
    logp = torch.tensor([[0.5, 0.3]]).log()
    assert losses.with_tail(logp).exp().flatten().tolist() == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)


def distilled(student, teacher, k, alpha):
    """The distillation from logits, as the trainer puts it together."""
    where = student.detach().topk(k, dim=-1).indices
    s, q = losses.picked_logp(student, where), losses.picked_logp(teacher, where)
    return losses.distillation_term(s, q, alpha)


def test_values_of_real_tokens_go_back_to_their_places():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    placed = losses.spread(values, mask)
    assert placed.tolist() == [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0]]
    placed.sum().backward()
    assert values.grad.tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), alpha=st.sampled_from([0.0, 0.3, 0.5, 1.0]), k=st.integers(1, 12))
def test_distillation_agrees_with_trl(seed, alpha, k):
    g = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, 3, 12, generator=g), torch.randn(2, 3, 12, generator=g)
    ours = distilled(student, teacher, k, alpha)
    theirs = trl_losses.compute_topk_self_distillation_loss(
        student, teacher, distillation_topk=k, distillation_alpha=alpha, distillation_add_tail=True
    )
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert (ours > -1e-5).all()


def test_a_teacher_that_agrees_teaches_nothing():
    logits = torch.randn(2, 3, 10, requires_grad=True)
    distilled(logits, logits, 4, 0.5).sum().backward()
    assert logits.grad.abs().max() < 1e-6


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), alpha=st.sampled_from([0.0, 0.3, 0.5, 1.0]), k=st.integers(1, 6))
def test_the_distillations_gradient_is_right_numerically(seed, alpha, k):
    g = torch.Generator().manual_seed(seed)
    student = (3 * torch.randn(1, 2, 6, dtype=torch.float64, generator=g)).requires_grad_()
    teacher = torch.randn(1, 2, 6, dtype=torch.float64, generator=g)
    assert gradcheck(lambda s: distilled(s, teacher, k, alpha), student, eps=1e-7, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), shift=st.sampled_from([-0.5, -0.05, 0.05, 0.5]))
def test_the_other_terms_gradients_are_right_numerically(seed, shift):
    """The shift moves the ratio inside and outside the clipping range; the kink itself has no gradient to check."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=g).requires_grad_()
    tokens = torch.randint(5, (2, 3), generator=g)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    other = losses.token_logp(logits.detach(), tokens) + shift
    for a in (torch.tensor([0.8, -0.3]).double(), torch.randn(2, 3, dtype=torch.float64, generator=g)):
        assert gradcheck(lambda s, a=a: losses.policy_term(losses.token_logp(s, tokens), other, a, (0.2, 0.3)), logits)
    assert gradcheck(lambda s: losses.kl_term(losses.token_logp(s, tokens), other + 0.1, other), logits)
    assert gradcheck(losses.entropy, logits)
    assert gradcheck(lambda s: losses.reply_mean(losses.token_logp(s, tokens), mask), logits)


def test_the_teacher_carries_no_gradient():
    student, teacher = torch.randn(1, 1, 8, requires_grad=True), torch.randn(1, 1, 8, requires_grad=True)
    distilled(student, teacher, 3, 0.5).sum().backward()
    assert teacher.grad is None and student.grad.abs().sum() > 0


def test_importance_is_clipped_and_carries_no_gradient():
    logp = torch.tensor([[math.log(3.0), 0.0]], requires_grad=True)
    ratio = losses.clipped_importance(logp, torch.zeros(1, 2), 2.0)
    assert ratio.tolist() == [[2.0, 1.0]] and not ratio.requires_grad


def test_reply_mean_counts_replies_alike_and_masked_ones_as_zero():
    # reply 1: mean(1, 3) = 2; reply 2: mean(5) = 5; reply 3: all masked -> 0; mean over 3 replies = 7/3
    values = torch.tensor([[1.0, 3.0], [5.0, 99.0], [7.0, 7.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert losses.reply_mean(values, mask).item() == pytest.approx(7 / 3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(1, 6), temperature=st.sampled_from([0.5, 1.0]))
def test_top_tokens_and_picked_values_by_their_definitions(seed, k, temperature):
    """A vocabulary of several blocks and more rows than are worked on at once."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 5, 10 * losses.BLOCK, generator=g)
    where = losses.top_tokens(logits, k)
    assert torch.equal(logits.gather(-1, where), logits.topk(k).values)
    expected = torch.log_softmax(logits / temperature, dim=-1)
    assert torch.allclose(losses.picked_logp(logits, where, temperature), expected.gather(-1, where), atol=1e-5)
    assert torch.allclose(losses.entropy(logits, temperature), -(expected.exp() * expected).sum(-1), atol=1e-4)


def test_picking_one_token_twice_adds_its_gradients():
    logits = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    where = torch.tensor([[2, 2, 5], [0, 6, 6], [1, 2, 3]])
    assert gradcheck(lambda z: losses.picked_logp(z, where, 0.7).sin(), logits)


def test_entropy_of_a_uniform_distribution():
    assert losses.entropy(torch.zeros(1, 1, 8)).item() == pytest.approx(math.log(8))
