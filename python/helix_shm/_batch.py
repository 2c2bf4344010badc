"""What a rank gets for a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Convert = Callable[[Any], Any]


class Batch(Mapping[str, Any]):
    """A batch: ``batch["video"]`` lies where the worker wrote it, and may be written to.

    It is a mapping with the keys ``video``, ``audio`` where the transform asks for it, and ``text`` (labels or
    captions, also as ``caption``). Its memory is in use
    until the batch and all tensors made of it are gone. Where samples differ in shape ``video`` is a list of tensors.
    """

    __slots__ = ("_cache", "_convert", "_manifest", "_raw", "_share", "_vector", "_world")

    def __init__(
        self, raw: Any, convert: Convert, vector: Convert, manifest: Any, world: int, share: int = 1
    ) -> None:
        self._raw = raw
        self._convert = convert
        self._vector = vector
        self._manifest = manifest
        self._world = world
        #: Ranks that have streams of their own, each a like part of the global batch.
        self._share = share
        self._cache: dict[str, Any] = {}

    # The mapping.

    def __getitem__(self, key: str) -> Any:
        key = "text" if key == "caption" else key
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._make(key)
        return found

    def _make(self, key: str) -> Any:
        raw = self._raw
        if key == "video":
            if raw.is_uniform:
                return self._convert(raw.tensor())
            return [self._convert(raw.sample(i)) for i in range(len(raw))]
        if key == "audio" and self._has_audio:
            return self._convert(raw.audio())
        if key == "text":
            return [self._manifest.text(row) for row in raw.ids]
        raise KeyError(f"a batch has no `{key}`; it has {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return iter(("video", "audio", "text") if self._has_audio else ("video", "text"))

    def __len__(self) -> int:
        return 3 if self._has_audio else 2

    def __contains__(self, key: object) -> bool:
        return key in ("video", "text", "caption") or (key == "audio" and self._has_audio)

    @property
    def _has_audio(self) -> bool:
        return self._raw.audio_facts is not None

    def samples(self) -> list[dict[str, Any]]:
        """The samples one by one, as a ``collate_fn`` takes them."""
        raw = self._raw
        samples = [
            {"video": self._convert(raw.sample(i)), "text": self._manifest.text(row), "id": row}
            for i, row in enumerate(raw.ids)
        ]
        if self._has_audio:
            for i, sample in enumerate(samples):
                sample["audio"] = self._convert(raw.audio_sample(i))
        return samples

    # Its sound.

    @property
    def audio_rate(self) -> int | None:
        """Numbers a second of ``audio``."""
        facts = self._raw.audio_facts
        return facts[0] if facts is not None else None

    @property
    def audio_lengths(self) -> list[int]:
        """For each sample how many numbers of a channel are its sound; silence follows."""
        facts = self._raw.audio_facts
        return facts[1] if facts is not None else []

    @property
    def audio_present(self) -> list[bool]:
        """For each sample whether its file has sound."""
        facts = self._raw.audio_facts
        return facts[2] if facts is not None else []

    @property
    def audio_start(self) -> list[float]:
        """For each sample when its sound begins, seconds on the file's clock."""
        facts = self._raw.audio_facts
        return facts[3] if facts is not None else []

    # What it is.

    @property
    def n_rank(self) -> int:
        """Samples in it; skipped ones are not."""
        return len(self._raw)

    @property
    def ids(self) -> list[int]:
        """The samples' rows in the manifest."""
        return self._raw.ids

    @property
    def epoch(self) -> int:
        """Epoch."""
        return self._raw.epoch

    @property
    def step(self) -> int:
        """Step within the epoch."""
        return self._raw.step

    @property
    def weights(self) -> Any:
        """Weight of each sample in the mean over the global batch.

        Under gradient averaging over ``R`` ranks the rank's loss is ``R * (weights * losses).sum()``.
        """
        weights = self._raw.weights
        return self._vector([w / self._share for w in weights] if self._share > 1 else weights)

    @property
    def n_global(self) -> int:
        """Samples of the step over all ranks, before any was skipped."""
        return self._raw.n_global * self._share

    @property
    def tokens(self) -> Any:
        """What the cost model says of each sample, e.g. its tokens."""
        return self._vector(self._raw.tokens)

    @property
    def tokens_rank(self) -> float:
        """Sum of ``tokens``."""
        return float(sum(self._raw.tokens))

    @property
    def tokens_global(self) -> float:
        """Sum of ``tokens`` over all ranks, as planned, in single precision."""
        return self._raw.cost[1] * self._world

    @property
    def home_ranks(self) -> list[int]:
        """For each sample the rank that the sampler dealt it to, before balancing."""
        return self._raw.home_ranks

    @property
    def skipped(self) -> int:
        """Samples that were left out because they could not be made."""
        return self._raw.skipped

    @property
    def wait(self) -> float:
        """How long ``next`` had waited for it, seconds."""
        return self._raw.wait

    @property
    def is_copy(self) -> bool:
        """Whether it was copied off the slab, because too many batches were kept there."""
        return self._raw.copied > 0

    # What frameworks look for.

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """The same batch with its video and sound moved, as ``Tensor.to`` moves them.

        This one lets go with its last reference.
        """
        video = self["video"]
        moved = Batch(self._raw, self._convert, self._vector, self._manifest, self._world, self._share)
        if isinstance(video, list):
            moved._cache["video"] = [v.to(*args, **kwargs) for v in video]
        else:
            moved._cache["video"] = video.to(*args, **kwargs)
        same = moved._cache["video"] is video
        if self._has_audio:
            moved._cache["audio"] = self["audio"].to(*args, **kwargs)
            same = same and moved._cache["audio"] is self["audio"]
        moved._raw = self._raw if same else _Facts(self._raw)
        return moved

    def pin_memory(self) -> Batch:
        """The batch itself: the slab is registered once, so that every batch in it is pinned."""
        return self

    def __repr__(self) -> str:
        return repr(self._raw)


class _Facts:
    """What is known of a batch, without its memory."""

    NAMES = (
        "ids",
        "epoch",
        "step",
        "weights",
        "n_global",
        "tokens",
        "cost",
        "home_ranks",
        "skipped",
        "wait",
        "copied",
        "is_uniform",
        "audio_facts",
    )

    def __init__(self, raw: Any) -> None:
        for name in self.NAMES:
            setattr(self, name, getattr(raw, name))

    def __len__(self) -> int:
        return len(self.ids)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"Batch(epoch {self.epoch}, step {self.step}, {len(self)} samples, moved)"  # type: ignore[attr-defined]
