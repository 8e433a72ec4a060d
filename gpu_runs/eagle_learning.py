"""What an EAGLE head starts from, what it is told, and how good it is.

The start is closed form: `fc` by ridge regression of the next feature on embedding and feature, the
layer's two output projections at zero, so that step 0 is the best linear head. The loss at a
judged place is the cross-entropy of the target's law, told as its top K tokens and the rest, plus
a smooth-L1 distance between the guessed feature and the true one. The head's law is normalised over
the tokens that any place of the batch has on top and a random sample of the others, each of which
stands for (others / sampled) tokens.

Letters: B chats of a batch, n pairs of a chat, G judged places, K top tokens, d width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from gpu_runs.eagle_texts import Lesson
from univer.drafters.eagle_files import SHAPES
from univer.drafters.eagle_network import EagleNetwork


def new_network(target: Any, final_norm: bool, seed: int) -> EagleNetwork:
    """A network of the target's own shapes; its layer adds nothing yet."""
    config = target.config.get_text_config()
    fields = {n: getattr(config, n) for n in SHAPES if getattr(config, n, None) is not None}
    llama: Any = LlamaConfig
    own = llama(
        **fields,
        vocab_size=target.get_output_embeddings().weight.shape[0],
        num_hidden_layers=1,
        rope_parameters=config.rope_parameters,
    )
    network = EagleNetwork(own, final_norm=final_norm)
    generator = torch.Generator().manual_seed(seed)
    layer: Any = network.layers[0]
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=0.02, generator=generator)
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return network


@torch.no_grad()
def regress(network: EagleNetwork, target: Any, lessons: Sequence[Lesson], ridge: float) -> None:
    """Set `fc` to the ridge regression of the next feature on embedding and feature.

    With a final norm the regression aims at what the norm makes the feature of, and the norm's
    weight is the target's own times the mean length that the regression keeps.
    """
    embed, scale = target.get_input_embeddings(), _norm_weight(target)
    width = network.config.hidden_size
    gram = torch.zeros(2 * width + 1, 2 * width + 1, dtype=torch.float64)
    cross = torch.zeros(2 * width + 1, width, dtype=torch.float64)
    rows = 0

    def inputs(lesson: Lesson) -> tuple[Tensor, Tensor]:
        judged = slice(max(lesson.first, 1), None)
        features = lesson.features.float()
        before = features[:-1][max(lesson.first, 1) - 1 :]
        x = torch.cat([embed(lesson.tokens[judged]).float(), before], -1)
        aim = features[judged] / scale if network.norm is not None else features[judged]
        return torch.cat([x, torch.ones(len(x), 1)], -1), aim

    for lesson in lessons:
        x, aim = inputs(lesson)
        gram += (x.T @ x).double()
        cross += (x.T @ aim).double()
        rows += len(x)
    penalty = ridge * gram.diagonal()
    penalty[-1] = 0
    solved = torch.linalg.solve(gram + penalty.diag(), cross).T.float()
    network.fc.weight.copy_(solved[:, :-1])
    network.fc.bias.copy_(solved[:, -1])
    if network.norm is not None:
        # The norm would stretch every guess to full length, that is, to too much confidence.
        x, _ = inputs(lessons[0])
        kept = (x @ solved.T).pow(2).mean(-1).sqrt().mean()
        network.norm.weight.copy_(scale * kept)


def _norm_weight(target: Any) -> Tensor:
    """Weight [d] of the target's final norm, away from zero."""
    weight: Tensor = target.base_model.norm.weight.detach().float()
    return torch.where(weight.abs() < 1e-3, torch.full_like(weight, 1e-3), weight)


@dataclass(frozen=True)
class Batch:
    """Chats side by side, padded at the end.

    tokens [B, n], features [B, n, d]: the pairs.
    places: int64 [G], the judged rows of [B, n] flattened.
    truth: float32 [G, d], the target's features there.
    top_tokens, top_probs: [G, K], its most probable next tokens there.
    """

    tokens: Tensor
    features: Tensor
    places: Tensor
    truth: Tensor
    top_tokens: Tensor
    top_probs: Tensor


def collate(lessons: Sequence[Lesson], top: int) -> Batch:
    """Pairs (token j, feature j - 1), j = 1 ..., of these chats, and what is true at j."""
    pairs = max(len(lesson.tokens) for lesson in lessons) - 1
    width = lessons[0].features.shape[1]
    tokens = torch.zeros(len(lessons), pairs, dtype=torch.int64)
    features = torch.zeros(len(lessons), pairs, width)
    places, truth, ids, probs = [], [], [], []
    for row, lesson in enumerate(lessons):
        own = len(lesson.tokens) - 1
        tokens[row, :own] = lesson.tokens[1:]
        features[row, :own] = lesson.features[:-1].float()
        # A prompt of one token has no pair at its last place.
        skipped = max(1 - lesson.first, 0)
        first = lesson.first + skipped
        places.append(row * pairs + torch.arange(first - 1, own))
        truth.append(lesson.features[first:].float())
        ids.append(lesson.top_tokens[skipped:, :top])
        probs.append(lesson.top_probs[skipped:, :top])
    return Batch(
        tokens, features, torch.cat(places), torch.cat(truth), torch.cat(ids), torch.cat(probs)
    )


def guesses(network: EagleNetwork, target: Any, batch: Batch, features: Tensor) -> Tensor:
    """The head's guesses at the judged places, [G, d]."""
    pairs = batch.tokens.shape[1]
    mask = torch.full((pairs, pairs), torch.finfo(features.dtype).min).triu(1)[None, None]
    with torch.no_grad():  # the target learns nothing
        embeddings = target.get_input_embeddings()(batch.tokens).float()
    out = network(embeddings, features, mask=mask, positions=torch.arange(pairs)[None])
    judged: Tensor = out.flatten(0, 1)[batch.places]
    return judged


def loss_of(
    network: EagleNetwork,
    target: Any,
    batch: Batch,
    *,
    noise: float,
    feature_loss: float,
    negatives: int,
    generator: torch.Generator,
) -> Tensor:
    """The loss of one batch, a scalar.

    Args:
        network: the head.
        target: in evaluation mode; it learns nothing.
        batch: B chats.
        noise: uniform noise on the input features, in units of their root mean square.
        feature_loss: weight of the smooth-L1 distance between guessed and true feature.
        negatives: tokens sampled of those that are on top nowhere in the batch.
        generator: of the noise and the sample.
    """
    length = batch.truth.pow(2).mean().sqrt()
    shaken = torch.rand(batch.features.shape, generator=generator) * 2 - 1
    guess = guesses(network, target, batch, batch.features + noise * length * shaken)
    head = target.get_output_embeddings()
    vocabulary = head.weight.shape[0]
    union, own = batch.top_tokens.unique(return_inverse=True)  # own: [G, K] columns of the union
    others = torch.ones(vocabulary, dtype=torch.bool)
    others[union] = False
    rest = others.nonzero()[:, 0]
    sampled = rest[torch.randperm(len(rest), generator=generator)[:negatives]]
    columns = torch.cat([union, sampled])
    z = guess @ head.weight.detach()[columns].float().T
    if head.bias is not None:
        z = z + head.bias.detach()[columns].float()
    weight = torch.zeros(len(columns))
    if len(sampled):
        weight[len(union) :] = math.log(len(rest) / len(sampled))
    z = z + weight
    log_law = z - z.logsumexp(-1, keepdim=True)
    named = log_law.gather(1, own)
    unnamed = (1 - batch.top_probs.sum(-1)).clamp(min=0)
    # The head's mass outside its place's own top tokens; none when these are the whole vocabulary.
    outside = log_law.scatter(1, own, -torch.inf)
    floor = math.log(torch.finfo(z.dtype).tiny)
    left = torch.cat([outside, torch.full((len(z), 1), floor)], 1).logsumexp(-1)
    entropy = -(batch.top_probs * named).sum(-1) - unnamed * left
    distance = nn.functional.smooth_l1_loss(guess, batch.truth)
    loss: Tensor = entropy.mean() + feature_loss * distance
    return loss


@torch.no_grad()
def acceptance(network: EagleNetwork, target: Any, lessons: Sequence[Lesson]) -> float:
    """Mean over the judged places of the sum of min(p, q), at temperature 1, on true features.

    It is the acceptance rate of one drafted token; deeper ones see the head's own features.
    """
    network.eval()
    head, total, count = target.get_output_embeddings(), 0.0, 0
    for lesson in lessons:
        batch = collate([lesson], 1)
        guess = guesses(network, target, batch, batch.features)
        p = head(batch.truth.to(head.weight.dtype)).float().softmax(-1)
        q = head(guess.to(head.weight.dtype)).float().softmax(-1)
        total += float(torch.minimum(p, q).sum())
        count += len(p)
    return total / count
