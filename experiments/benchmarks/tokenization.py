"""Tokenization speed beside Hugging Face `tokenizers`, one core each: text to ids, uncased.

    python -m experiments.benchmarks.tokenization ../shared/data

The contenders take turns, so that a busy machine slows all of them, and processor time is what
counts. Each turn starts with a new tokenizer: what ours remembers it has to find out in the turn.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import statistics
import time
from pathlib import Path
from typing import Annotated

import tokenizers
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.contenders import ratio
from keras_bert_ref import WordPieceTokenizer

_BATCH = 1000  # lines


def _ours(vocabulary, lines):
    token_ids = WordPieceTokenizer(vocabulary).token_ids
    start = time.process_time()
    pieces = sum(len(token_ids(line)) for line in lines)
    return pieces, time.process_time() - start


def _hugging_face(method, vocabulary, lines):
    model = tokenizers.models.WordPiece(
        {piece: i for i, piece in enumerate(vocabulary)},
        unk_token="[UNK]",
        max_input_chars_per_word=200,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    encode = getattr(tokenizer, method)
    start = time.process_time()
    pieces = 0
    for i in range(0, len(lines), _BATCH):
        pieces += sum(len(encoding.ids) for encoding in encode(lines[i : i + _BATCH]))
    return pieces, time.process_time() - start


def compare(data, rounds):
    """Returns contender → megabytes a second in each turn; and pieces of each, MB and lines."""
    vocabulary = WordPieceTokenizer.from_vocab(
        data / "vocab/bert-base-uncased-vocab.txt"
    ).vocabulary
    texts = [path.read_bytes() for path in sorted((data / "text/eltec").glob("*.txt"))]
    lines = [line for text in texts for line in text.decode().split("\n")]
    megabytes = sum(map(len, texts)) / 1e6
    contenders = {
        "keras-bert-ref token_ids": _ours,
        "tokenizers encode_batch": lambda *work: _hugging_face("encode_batch", *work),
        "tokenizers encode_batch_fast (no offsets)": lambda *work: _hugging_face(
            "encode_batch_fast", *work
        ),
    }
    pieces, rates = {}, {name: [] for name in contenders}
    for _ in track(range(rounds), "Rounds"):
        for name, run in contenders.items():
            pieces[name], seconds = run(vocabulary, lines)
            rates[name].append(megabytes / seconds)
    return rates, pieces, megabytes, len(lines)


def main(
    data: Annotated[Path, typer.Argument(help="Folder with text/eltec and vocab.")] = Path(
        "../shared/data"
    ),
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 3,
):
    """Prints megabytes (of UTF-8) per second of processor time."""
    rates, pieces, megabytes, lines = compare(data, rounds)
    table = Table(
        title=f"{megabytes:.1f} MB, {lines:,} lines, {rounds} rounds; "
        f"tokenizers {tokenizers.__version__}"
    )
    for column in ("", "pieces", "MB/s, median", "lowest – highest", "ours is faster by"):
        table.add_column(column, justify="left" if not column else "right")
    ours = rates["keras-bert-ref token_ids"]
    for name, values in rates.items():
        table.add_row(
            name,
            f"{pieces[name]:,}",
            f"{statistics.median(values):.1f}",
            f"{min(values):.1f} – {max(values):.1f}",
            "" if values is ours else f"× {ratio(ours, values):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
