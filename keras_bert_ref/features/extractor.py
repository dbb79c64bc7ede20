"""Layer-wise hidden states of a frozen encoder, for any model downstream (paper, section 5.3)."""

import contextlib
import dataclasses

import numpy as np

from keras_bert_ref.encoder import BertEncoder
from keras_bert_ref.errors import CheckpointError, ConfigError, InputError, TruncationWarning
from keras_bert_ref.features.batches import batches
from keras_bert_ref.features.combining import (
    COMBINATIONS,
    PIECE_POOLINGS,
    TEXT_POOLINGS,
    choose,
    combine_layers,
    layer_numbers,
    normalized,
    pool_pieces,
    statistics_for,
    text_vector,
)
from keras_bert_ref.features.frozen import STATISTICS, FrozenEncoder
from keras_bert_ref.features.statistics import text_statistics
from keras_bert_ref.features.windows import check_input, prepare

# Inputs are sorted by length among so many pieces, which bounds what is in memory.
_PIECES_AT_ONCE = {"text": 1 << 18, "piece": 1 << 15}


@dataclasses.dataclass(frozen=True)
class TokenFeatures:
    """The features of one input, and what they belong to.

    Attributes:
        values: float32 [n, D] for n pieces or words; [D] for a whole text.
        tokens: the pieces, strings.
        offsets: where in the text (or within its word) each piece comes from; None for specials.
        word_ids: the index of each piece's word; None for specials.
    """

    values: np.ndarray
    tokens: list[str]
    offsets: list
    word_ids: list


class FeatureExtractor:
    """Turns text into the hidden states of a frozen encoder.

    ```python
    extractor = FeatureExtractor("hf://google-bert/bert-base-cased")
    extractor.extract(["A sentence.", ("A pair", "of texts"), ["words", "of", "a", "sentence"]])
    ```

    Inputs are strings, pairs (tuples of two strings) and lists of words, also mixed. They are read
    in batches of similar length; results are in the order of the inputs, and float32.

    Args:
        where: a checkpoint, see `BertEncoder.from_pretrained`; or a `BertEncoder` or task model
            with its tokenizer.
        layers: which layers: numbers from 0 (the embeddings) to L, negative ones from the end;
            "last4"; or "all".
        combine: how several layers become one vector: "concat" (in the order given), "sum",
            "mean"; "stack" leaves them an axis [k, H]; or a trained `ScalarMix`.
        pooling: for a vector a text, "cls", "mean", "max", "mean_max" (both, one after the other)
            or "pooler" (of the last layer, whatever `layers`); for a vector a word, "first_piece",
            "last_piece" or "mean_piece"; "pieces" for all. Pooling comes first, layer by layer.
        specials: whether [CLS] and [SEP] count in "mean" and "max" and come with "pieces".
        normalize: whether the vectors are scaled to length 1.
        max_length: the most pieces that are read at once, specials included; None for 512 or what
            the encoder can.
        overflow: what becomes of longer texts: "truncate" them (with a warning, and `truncated`
            counts them), or "slide" a window over them, each piece's features from the window in
            which it has most context.
        stride: how far a window begins after the one before, in pieces; None for half its length.
        tokens_per_batch: the most pieces of a batch, padding included.
        dtype: a Keras dtype policy, such as "mixed_bfloat16", when loading a checkpoint.

    Attributes:
        encoder, tokenizer: what features are computed with.
        layers: the numbers of the layers, counted from 0.
        size: D, the length of a vector ([k, H] with "stack").
        truncated: how many texts the last call cut.

    Raises:
        ConfigError: an option is unknown or at odds with the encoder.
        CheckpointError: the checkpoint cannot be used, or has no vocabulary.
    """

    def __init__(
        self,
        where,
        *,
        layers="last4",
        combine="concat",
        pooling="mean",
        specials=True,
        normalize=False,
        max_length=None,
        overflow="truncate",
        stride=None,
        tokens_per_batch=4096,
        dtype=None,
    ):
        choose("pooling", pooling, (*TEXT_POOLINGS, *PIECE_POOLINGS))
        choose("overflow", overflow, ("truncate", "slide"))
        if not callable(combine):
            choose("combine", combine, COMBINATIONS)
        if hasattr(where, "from_pretrained"):
            self.encoder, self.tokenizer = getattr(where, "encoder", where), where.tokenizer
        else:
            self.encoder = BertEncoder.from_pretrained(where, dtype=dtype)
            self.tokenizer = self.encoder.tokenizer
        if self.tokenizer is None:
            raise CheckpointError(f"{where} has no tokenizer: set it, or keep vocab.txt with it")
        if pooling == "pooler" and self.encoder.pooler is None:
            raise ConfigError(f"{where} has no pooler: choose another pooling")
        config = self.encoder.config
        self.layers = layer_numbers(layers, config.num_hidden_layers)
        self.combine, self.pooling, self.specials = combine, pooling, specials
        self.normalize, self.tokens_per_batch = normalize, tokens_per_batch
        self.max_length = _within(
            "max_length", max_length, 3, config.max_position_embeddings, default=512
        )
        self.stride = None
        if overflow == "slide":
            self.stride = _within(
                "stride", stride, 1, self.max_length, default=self.max_length // 2
            )
        elif stride is not None:
            raise ConfigError("stride is for overflow='slide'")
        self.truncated = 0
        self._frozen = FrozenEncoder(self.encoder, self.layers)
        width = config.hidden_size * (2 if pooling == "mean_max" else 1)
        if pooling == "pooler":
            self.size = width
        elif combine == "stack":
            self.size = (len(self.layers), width)
        else:
            self.size = width * (len(self.layers) if combine == "concat" else 1)

    def extract(self, inputs, *, return_tokens=False, progress=False):
        """Returns the features of all inputs.

        Args:
            inputs: an iterable of strings, pairs and lists of words.
            return_tokens: whether the pieces and their offsets are wanted as well.
            progress: whether to show a progress bar.

        Returns:
            float32 [N, D] for vectors of texts, else a list of N arrays [n, D], n differing; with
            `return_tokens`, a list of N `TokenFeatures`.

        Raises:
            InputError: inputs are of another kind; the message names all their rows. Nothing has
                been computed then.
        """
        inputs = _all(inputs)
        for_texts = self.pooling in TEXT_POOLINGS and not return_tokens
        size = self.size if isinstance(self.size, tuple) else (self.size,)
        # Written to its place at once: a list to stack later would take twice the memory.
        results = np.empty((len(inputs), *size), np.float32) if for_texts else [None] * len(inputs)
        row = -1
        try:
            for row, value in enumerate(self.stream(inputs, return_tokens, progress=progress)):
                results[row] = value
        except ConfigError as error:
            raise ConfigError(f"row {row + 1}: {error}") from None
        return results

    def stream(self, inputs, return_tokens=False, *, progress=False):
        """Yields the features of one input after the other; see `extract`.

        Memory stays flat however many there are.

        Raises:
            InputError: an input is of another kind; those before it have been yielded.
        """
        self.truncated = 0
        reads = "text" if self.pooling in TEXT_POOLINGS else "piece"
        total = len(inputs) if hasattr(inputs, "__len__") else None
        items, pieces, failed = [], 0, None
        with _bar(total, progress) as advance:
            for row, value in enumerate(inputs):
                try:
                    check_input(row, value)
                    items.append(prepare(value, self.tokenizer, self.max_length, self.stride))
                except (InputError, ConfigError) as error:
                    failed = error
                    break
                pieces += sum(len(window.places) for window in items[-1].windows)
                if pieces >= _PIECES_AT_ONCE[reads]:
                    yield from self._read(items, return_tokens, advance)
                    items, pieces = [], 0
            yield from self._read(items, return_tokens, advance)
        if self.truncated:
            TruncationWarning.issue(
                f"{self.truncated:,} of the texts have more than {self.max_length} pieces and were "
                "cut: overflow='slide' reads all of them"
            )
        if failed:
            raise failed

    def statistics(self, inputs):
        """Yields all `frozen.STATISTICS` of each input, from which any text's vector is made.

        Yields:
            Name → float32 [k, H] for k layers; [H] of the pooler, if there is one.
        """
        wanted = [name for name in STATISTICS if name != "pooler" or self.encoder.pooler]
        items = [
            prepare(value, self.tokenizer, self.max_length, self.stride) for value in _all(inputs)
        ]
        self.truncated = sum(item.truncated for item in items)
        return text_statistics(self._frozen, items, wanted, self.tokens_per_batch)

    def _read(self, items, return_tokens, advance):
        self.truncated += sum(item.truncated for item in items)
        compute = self._texts if self.pooling in TEXT_POOLINGS else self._pieces
        values = compute(items, advance)
        for item, value in zip(items, values, strict=True):
            if self.normalize:
                value = normalized(value)
            if return_tokens:
                kept = range(len(item.special))
                if self.pooling == "pieces" and not self.specials:
                    kept = np.flatnonzero(~item.special)
                encoding = item.encoding
                lists = (encoding.tokens, encoding.offsets, encoding.word_ids)
                value = TokenFeatures(value, *([one[n] for n in kept] for one in lists))
            yield value

    def _texts(self, items, advance):
        """Yields a vector for each item."""
        wanted = statistics_for(self.pooling, self.specials)
        read = text_statistics(self._frozen, items, wanted, self.tokens_per_batch, advance)
        for statistics in read:
            yield text_vector(statistics, self.pooling, self.specials, self.combine)

    def _pieces(self, items, advance):
        """Yields vectors for the pieces or words of each item."""
        states = [None] * len(items)
        max_length = self.encoder.config.max_position_embeddings
        for chosen, arrays in batches(items, self.tokens_per_batch, max_length):
            results = combine_layers(self._frozen.states(arrays), self.combine)
            for row, (number, window) in zip(results, chosen, strict=False):
                if states[number] is None:
                    length = len(items[number].special)
                    states[number] = np.empty((length, *row.shape[1:]), np.float32)
                own = row[: len(window.places)][window.owned]
                states[number][window.places[window.owned]] = own
                advance(1 / len(items[number].windows))
        for item, values in zip(items, states, strict=True):
            if self.pooling == "pieces":
                yield values if self.specials else values[~item.special]
            else:
                yield pool_pieces(values, item.encoding.word_ids, self.pooling)


def _within(name, value, least, most, default):
    if value is None:
        return min(default, most)
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _all(inputs):
    """Returns the inputs as a list, having checked all of them."""
    if isinstance(inputs, str | bytes):
        raise InputError("the inputs are one string: give a list of strings")
    inputs = list(inputs)
    wrong = []
    for row, value in enumerate(inputs):
        try:
            check_input(row, value)
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        more = f" (and {len(wrong) - 5:,} more rows)" if len(wrong) > 5 else ""
        raise InputError("; ".join(wrong[:5]) + more)
    return inputs


@contextlib.contextmanager
def _bar(total, visible):
    """Shows a progress bar, or nothing; its value is called with how many texts have been read."""
    if not visible:
        yield lambda texts: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("texts", total=total)
        yield lambda texts: progress.advance(task, texts)
