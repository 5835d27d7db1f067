# SPDX-License-Identifier: Apache-2.0
"""Texts, models and experiments.

Texts come from Debian packages, which are downloaded and unpacked into a cache folder, not installed:

    bible-kjv, bible-kjv-text   the King James Bible, 4.2 MB: what the transformer is trained on
    debian-handbook             the Debian Administrator's Handbook, 1.2 MB: what it is fine-tuned on
    fortunes                    2.5 MB of sayings, for more words

Elsewhere, put bible.txt, handbook.txt and fortunes.txt into the cache folder: any three English texts of such
sizes. """

from __future__ import annotations

import hashlib
import html
import math
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import files
from optimizers import Hyper

PACKAGES = ("bible-kjv", "bible-kjv-text", "debian-handbook", "fortunes")
TEXTS = ("bible", "handbook", "fortunes")


# Texts

def _unpack(cache: Path) -> Path:
    root = cache / "debian"
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=root, check=True)
    for package in root.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=root, check=True)
    return root


def _bible(root: Path) -> str:
    # Its text is packed; the package's own program prints it, a verse a line.
    command = [f"{root}/usr/bin/bible", "-p", f"{root}/usr/lib/", "-l2000", "gen1:1-rev22:21"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, encoding="latin-1").stdout
    return re.sub(r"(?m)^ *\d+ ", "", out)


def _handbook(root: Path) -> str:
    pages = []
    for page in sorted((root / "usr/share/doc/debian-handbook/html/en-US").glob("*.html")):
        text = page.read_text(encoding="utf-8")
        pages.append(html.unescape(re.sub(r"(?s)<head.*?</head>|<script.*?</script>|<[^>]+>", "", text)))
    return "\n".join(pages)


def _fortunes(root: Path) -> str:
    files = sorted((root / "usr/share/games/fortunes").iterdir())
    return "\n".join(each.read_text(encoding="utf-8", errors="replace") for each in files
                     if each.is_file() and not each.is_symlink() and each.suffix not in (".dat", ".u8"))


def texts(cache: Path) -> dict[str, str]:
    """All of them, in ASCII, with spaces and empty lines made single."""
    paths = {name: cache / f"{name}.txt" for name in TEXTS}
    if not all(each.exists() for each in paths.values()):
        try:
            root = _unpack(cache)
            for name, make in zip(TEXTS, (_bible, _handbook, _fortunes)):
                text = make(root).encode("ascii", "replace").decode()
                text = re.sub(r"[^\n!-~]+", " ", text)
                paths[name].write_text(re.sub(r" *\n\s*", "\n", text))
        except (OSError, subprocess.CalledProcessError) as error:
            names = ", ".join(path.name for path in paths.values())
            files.fail(f"cannot get texts from Debian packages: {error}. Put {names} into {cache}.")
    return {name: each.read_text(encoding="ascii", errors="replace") for name, each in paths.items()}


def digest(found: dict[str, str]) -> str:
    return hashlib.sha256("\0".join(found[name] for name in TEXTS).encode()).hexdigest()[:16]


def characters(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()


def words(found: dict[str, str], count: int) -> Tensor:
    """All texts as numbers of their most frequent words; the last number is that of all others. Lines of the
    three are mixed, in an order that is always the same, so that what is held out is like what is trained
    on."""
    lines = [line for name in TEXTS for line in found[name].lower().split("\n")]
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0)).tolist()
    tokens = re.findall(r"[a-z]+(?:'[a-z]+)?|[0-9]|[^\sa-z0-9]", "\n".join(lines[i] for i in order))
    number = {word: i for i, (word, _) in enumerate(Counter(tokens).most_common(count - 1))}
    return torch.tensor([number.get(word, count - 1) for word in tokens])


# Models

class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2)
                   for each in self.qkv(self.before(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x)), approximate="tanh"))


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, width: int = 208, layers: int = 2, heads: int = 4, length: int = 64,
                 symbols: int = 128):
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                into_sum = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.1 if name.startswith(("symbols", "places")) else
                                0.02 / math.sqrt(2 * layers) if into_sum else 0.02)

    def forward(self, window: Tensor) -> Tensor:
        """The mean loss of windows of numbers, each predicted by those before it."""
        x = self.symbols(window[:, :-1]) + self.places.weight[:window.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.last(x)).flatten(0, 1), window[:, 1:].flatten())


class Words(nn.Module):
    """Predicts a word by the four before it. Nearly all params are rows of words; those of rare words get a
    gradient seldom where they are looked up, and a tiny one in each step where they are a choice that was not
    taken."""

    BEFORE = 4

    def __init__(self, count: int = 20_000, width: int = 32, hidden: int = 128):
        super().__init__()
        self.rows = nn.Embedding(count, width)
        self.hidden, self.back = nn.Linear(self.BEFORE * width, hidden), nn.Linear(hidden, width)
        self.choices = nn.Linear(width, count)
        nn.init.normal_(self.rows.weight, std=0.1)
        nn.init.normal_(self.choices.weight, std=0.1)
        nn.init.zeros_(self.choices.bias)

    def forward(self, window: Tensor) -> Tensor:
        before = self.rows(window[:, :self.BEFORE]).flatten(1)
        hidden = self.back(torch.tanh(self.hidden(before)))
        return functional.cross_entropy(self.choices(hidden), window[:, -1])


# Experiments

@dataclass(frozen=True)
class Experiment:
    what: str
    data: Callable[[dict[str, str]], Tensor]
    model: Callable[[], nn.Module]
    window: int  # numbers in one
    batch: int  # windows in a step
    steps: int
    lr: float
    hyper: Hyper = Hyper()
    warmup: int = 50
    decays: bool = True  # the learning rate, to a tenth, as a cosine; otherwise it stays
    gradient_scale: float = 1.0
    starts_from: str | None = None  # the experiment whose float32 weights, of the same seed, it begins with
    held_out_batches: int = 24

    def setting(self) -> str:
        """What makes runs comparable."""
        return (f"{self.steps} steps of {self.batch} windows of {self.window}, lr {self.lr}, "
                f"{'cosine' if self.decays else 'constant'} after {self.warmup}, {self.hyper}, "
                f"gradients times {self.gradient_scale}")

    def rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / self.warmup)
        if not self.decays:
            return self.lr * warm
        return self.lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / self.steps))


def _bible_text(found: dict[str, str]) -> Tensor:
    return characters(found["bible"])


EXPERIMENTS: dict[str, Experiment] = {
    "text": Experiment(
        "a transformer, 1.1 million params, on the characters of the Bible", _bible_text, Transformer,
        window=65, batch=8, steps=600, lr=3e-3),
    "finetune": Experiment(
        "that transformer fine-tuned on a handbook of Debian, learning rate 3e-5",
        lambda found: characters(found["handbook"]), Transformer,
        window=65, batch=8, steps=150, lr=3e-5, warmup=20, decays=False, starts_from="text"),
    "words": Experiment(
        "20,000 words, 1.3 million params in their rows, most of them rare",
        lambda found: words(found, 20_000), Words, window=5, batch=256, steps=350, lr=2e-3),
    "small": Experiment(
        "the transformer with gradients times 1e-4, eps as ever, 1e-8", _bible_text, Transformer,
        window=65, batch=8, steps=150, lr=3e-3, gradient_scale=1e-4),
    "small_eps": Experiment(
        "the transformer with gradients and eps times 1e-4", _bible_text, Transformer,
        window=65, batch=8, steps=150, lr=3e-3, gradient_scale=1e-4, hyper=Hyper(eps=1e-12)),
}
