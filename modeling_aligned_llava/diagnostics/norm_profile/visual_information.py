"""How much of an image visual tokens hold, layer by layer, by their nearest neighbours.

Of a visual token's nearest neighbours among tokens of all images (cosines of what deviates from the mean), entering a
decoder layer, the share that are its neighbours by the vision encoder's features too, as in "Lost in Embeddings"
(2509.11986). Features are what the connector reads. Where it mixes them (a resampler, an average), or what it makes
changes on its way to the decoder, visual tokens entering layer 0 take their place: what the decoder loses is measured.

The interval is a jackknife's over images: without an image, its tokens go, and go from the neighbours of others. It is
wide rather than narrow: in tinyworld it had the mean over other images in 98 to 100 % of cases.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from modeling_aligned_llava.diagnostics.instruments.decoder_states import states_of
from modeling_aligned_llava.diagnostics.instruments.token_masks import SAME_DIRECTION, row_hashes


NEIGHBOURS = 10
TOKENS, IMAGES = 500, 100  # that are compared at most: more cost over a tenth of tinyworld's forward passes
FEWEST = 10 * NEIGHBOURS  # tokens: among fewer, chance alone gives a tenth or more
Made = tuple[Tensor, Tensor]  # rows [n, D] that a connector made, and the features [n, E] that each was made of


class TokenSample:
    """The same places of some images: visual tokens entering every layer, and their features.

    Args:
        images: how many will be measured.
    """

    def __init__(self, images: int):
        self.step = -(-images // IMAGES)
        self.share = max(1, TOKENS // min(images, IMAGES))  # of an image
        self.images = 0
        self.features: list[Tensor | None] = []  # each [tokens, E]; None: not known
        self.states: list[list[Tensor]] = []  # each [tokens, D] by layer

    def places(self, visual: Tensor) -> Tensor | None:
        """Rows and columns [2, n] of the tokens of the next image to keep, from a mask; None for an image left out."""
        self.images += 1
        if (self.images - 1) % self.step:
            return None
        places = visual.nonzero().T
        chosen = torch.randperm(places.shape[1], generator=torch.Generator().manual_seed(0))[: self.share]
        return places[:, chosen.sort().values.to(places.device)]

    def add(self, features: Tensor | None, states: list[Tensor]) -> None:
        self.features.append(features)
        self.states.append(states)

    def summary(self) -> dict[str, Any]:
        """What a profile says; `mean` is None if there are too few tokens, or they do not differ."""
        layers = [torch.cat(states) for states in zip(*self.states, strict=True)]  # each [tokens, D]
        known = [features for features in self.features if features is not None]
        whole = bool(known) and len(known) == len(self.features)
        features = torch.cat(known) if whole else layers[0]
        counts = [len(states[0]) for states in self.states]
        result: dict[str, Any] = {
            "reference": "features that the connector reads" if whole else "visual tokens entering layer 0",
            "tokens": len(features),
            "images": len(counts),
        }
        if len(features) < FEWEST or not (features != features[0]).any():
            return result | {"mean": None, "ci95": None, "shuffled": None}
        ranked = min(NEIGHBOURS + max(counts), len(features) - 1)  # as many remain without an image
        near = neighbours(features, ranked)
        shuffled = neighbours(features[_next_image(counts).to(features.device)], NEIGHBOURS)
        several = len(counts) > 1
        means, by_chance, ends = [], [], []
        for states in layers:
            by_state = neighbours(states, ranked)
            shares = overlaps(by_state[:, :NEIGHBOURS], near[:, :NEIGHBOURS])
            means.append(shares.mean().item())
            by_chance.append(overlaps(by_state[:, :NEIGHBOURS], shuffled).mean().item())
            if several:
                half = _half_width(_without_each(shares, by_state, near, counts))
                ends.append([means[-1] - half, means[-1] + half])
        return result | {"mean": means, "ci95": ends if several else None, "shuffled": by_chance if several else None}


def neighbours(tokens: Tensor, count: int) -> Tensor:
    """The nearest neighbours of each of the tokens [N, D], [N, count], nearest first."""
    tokens = tokens.float()
    directions = normalize(tokens - tokens.mean(0), dim=-1)
    return (directions @ directions.T).fill_diagonal_(-torch.inf).topk(count).indices.cpu()


def overlaps(near: Tensor, reference: Tensor) -> Tensor:
    """The share of each token's `NEIGHBOURS` [N, ...] that are among those of the reference, [N]."""
    return (near[:, :, None] == reference[:, None]).any(-1).sum(-1).double() / NEIGHBOURS


def _without_each(shares: Tensor, near: Tensor, reference: Tensor, counts: list[int]) -> Tensor:
    """The mean share [images] of the other tokens without each image in turn.

    Args:
        shares: of every token, [N].
        near, reference: neighbours in two spaces, nearest first, enough that `NEIGHBOURS` remain, [N, ranked].
    """
    images = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))  # of each token
    touched = torch.cat([images[near[:, :NEIGHBOURS]], images[reference[:, :NEIGHBOURS]]], 1)
    changes = torch.zeros(len(shares), len(counts), dtype=torch.bool).scatter_(1, touched, True)
    changes[torch.arange(len(shares)), images] = False  # the image's own tokens go
    tokens, image = changes.nonzero().T
    kept = []
    for ranking in (near, reference):
        stays = images[ranking[tokens]] != image[:, None]
        kept.append(stays & (stays.cumsum(1, dtype=torch.int16) <= NEIGHBOURS))
    count, ranked = reference.shape
    place = torch.full((count, count), ranked).scatter_(1, reference, torch.arange(ranked).expand(count, ranked))
    common = kept[0] & pad(kept[1], (0, 1)).gather(1, place.gather(1, near)[tokens])  # padded: not in `reference`
    sums = shares.sum() - torch.zeros(len(counts)).double().index_add_(0, images, shares)
    sums.index_add_(0, image, common.sum(-1).double() / NEIGHBOURS - shares[tokens])
    return sums / (len(shares) - torch.tensor(counts))


def _half_width(without_each: Tensor) -> float:
    """Half of a 95 % interval, from the mean without each image in turn."""
    return 1.96 * (without_each.std(correction=0) * (len(without_each) - 1) ** 0.5).item()


def _next_image(counts: list[int]) -> Tensor:
    """For each token the number of the one at the same place of the next image."""
    starts = torch.tensor([0, *counts]).cumsum(0).tolist()
    following = [*range(1, len(counts)), 0]
    return torch.cat([starts[j] + torch.arange(n) * counts[j] // n for n, j in zip(counts, following, strict=True)])


class ByRows:
    """Tells what a connector made each row of its output of: one row of its input, or several next to each other."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, torch.Size], bool] = {}  # by connector and shape of its input

    def __call__(self, connector: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> Made | None:
        """None if a change of the input of one row changes others, or not this one."""
        read, made = states_of([*args, *kwargs.values()]), states_of(output)
        if read is None or made is None:
            return None
        count, rows = made.shape[:-1].numel(), read.shape[:-1].numel()
        if not count or rows % count:
            return None
        if (connector, read.shape) not in self.known:
            self.known[connector, read.shape] = _row_by_row(connector, args, kwargs, read, count)
        features = read.detach().reshape(count, -1)
        return (made.detach().flatten(0, -2), features) if self.known[connector, read.shape] else None


@torch.no_grad()
def _row_by_row(connector: Any, args: tuple, kwargs: dict[str, Any], read: Tensor, count: int) -> bool:
    changed, middle = read.clone().reshape(count, -1), count // 2
    changed[middle] = changed[middle].flip(-1)
    other = [changed.view_as(read) if value is read else value for value in (*args, *kwargs.values())]
    before = states_of(connector.forward(*args, **kwargs))
    after = states_of(connector.forward(*other[: len(args)], **dict(zip(kwargs, other[len(args) :], strict=True))))
    if before is None or after is None or before.shape != after.shape:
        return False
    return (before != after).any(-1).flatten().nonzero().tolist() == [[middle]]


def features_of(tokens: Tensor, made: list[Made | None]) -> Tensor | None:
    """The features [n, E] of tokens [n, D] entering layer 0, each a row that a connector made, or a multiple of one.

    None if one of them is not.
    """
    known = [pair for pair in made if pair is not None]
    if not known or len({(rows.shape[-1], features.shape[-1]) for rows, features in known}) > 1:
        return None
    rows, features = (torch.cat(parts).to(tokens.device) for parts in zip(*known, strict=True))
    if rows.shape[-1] != tokens.shape[-1]:
        return None
    same = (row_hashes(tokens)[:, None] == row_hashes(rows.to(tokens.dtype))).float()
    if not same.any(-1).all():
        same = normalize(tokens.float(), dim=-1) @ normalize(rows.float(), dim=-1).T
    likeness, origin = same.max(-1)
    return features[origin] if bool((likeness > SAME_DIRECTION).all()) else None
