"""What packing saves: pretraining on rows of several sequences beside rows of one.

    python -m experiments.benchmarks.packing ../shared/data/squad/dev-v1.1.json VOCAB --size base

TEXT is files of text, as `create-data --split-sentences` takes them, or a file of SQuAD, each of
whose paragraphs is a document. Both contenders train on the same sequences, as many an update:
packed, they lie in fewer rows. Each runs in a fresh process, in turn, so that a busy machine slows
both alike. With --steps large enough to learn something, the held-out loss says whether it is the
same that they learn.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks import contenders
from experiments.benchmarks.feature_extraction import read_paragraphs

_RUN = """
import json, sys
from experiments.benchmarks.packing import pretrain
print(json.dumps(pretrain(**json.loads(sys.argv[1]))))
"""
_WARM_UP = 2  # steps that are not timed: the first traces the step


def make_data(text, vocab, folder, length, places, processes):
    """Writes the shards of both; returns name → (folder, its split "train")."""
    from keras_bert_ref import WordPieceTokenizer
    from tfrecords.create import create_pretraining_data
    from tfrecords.settings import InstanceSettings

    if text.endswith(".json"):
        source = folder / "paragraphs.txt"
        source.write_text("\n\n".join(read_paragraphs(text)) + "\n", encoding="utf-8")
        text = str(source)
    made = {}
    for name, sequences in (("one to a row", 1), (f"up to {places} to a row", places)):
        settings = InstanceSettings(
            max_seq_length=length,
            max_predictions_per_seq=round(0.15 * length),
            sequences_per_row=sequences,
        )
        out = folder / f"data-{sequences}"
        manifest = create_pretraining_data(
            text,
            WordPieceTokenizer.from_vocab(vocab),
            out,
            settings,
            dynamic_masking=True,
            split_sentences="en",
            held_out=0.05,
            processes=processes,
        )
        made[name] = out, manifest.splits["train"]
    return made


def pretrain(data, held_out, rows, size, precision, steps, learning_rate):
    """Trains so many steps; returns the real tokens a second, and what was learned.

    Args:
        data: the shards' folder.
        held_out: a folder of rows of one sequence, whose split "heldout" is scored; None for none.
        rows: in an update.
        size: a name `BertConfig.from_name` takes.
        precision: a Keras dtype policy.
        steps: updates.
        learning_rate: the peak.
    """
    from keras_bert_ref import BertAdamW, BertConfig, BertEncoder, BertPretrainer, WarmupLinear
    from keras_bert_ref._tensorflow import keras, tf
    from tfrecords.reader import open_shards, pretraining_dataset

    shards = open_shards(data)
    places = shards.sequences_per_row
    keras.utils.set_random_seed(0)
    config = BertConfig.from_name(size, vocab_size=shards.vocab_size)
    model = BertPretrainer(BertEncoder(config, sequences_per_row=places, dtype=precision))
    model.compile(optimizer=BertAdamW(WarmupLinear(learning_rate, steps, max(1, steps // 10))))
    step = tf.function(model.train_step, autograph=False)
    batches = iter(pretraining_dataset(shards, rows, sequences_per_row=places))
    tokens = 0
    for number in range(steps):
        if number == _WARM_UP:
            tokens, began = 0, time.perf_counter()
        batch = next(batches)
        results = step(batch)
        tokens += int(tf.math.count_nonzero(batch[0]["input_mask"]))
        float(results["loss"])
    rate = tokens / (time.perf_counter() - began)
    scores = {}
    if held_out is not None:
        scored = pretraining_dataset(
            held_out, 16, split="heldout", shuffle=False, epochs=1, drop_remainder=False,
            sequences_per_row=places,
        )  # fmt: skip
        model.reset_metrics()
        test = tf.function(model.test_step, autograph=False, reduce_retracing=True)
        for batch in scored:
            scores = test(batch)
        scores = {name: float(value) for name, value in scores.items()}
    return {"rate": rate, "tokens": tokens / (steps - _WARM_UP), "scores": scores}


def compare(
    text, vocab, *, size, length, places, rows, steps, learning_rate, precision, rounds, score,
    processes,
):  # fmt: skip
    """Returns contender → what `pretrain` found in each turn, and contender → its split."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        made = make_data(text, vocab, Path(folder), length, places, processes)
        (single, _), (_, packed) = made.values()
        for _ in track(range(rounds), description="turns"):
            for name, (where, split) in made.items():
                task = {
                    "data": str(where),
                    "held_out": str(single) if score else None,
                    "rows": round(rows * split.records / packed.records),
                    "size": size,
                    "precision": precision,
                    "steps": steps,
                    "learning_rate": learning_rate,
                }
                found.setdefault(name, []).append(contenders.run(_RUN, json.dumps(task)))
    return found, {name: split for name, (_, split) in made.items()}


def main(
    text: Annotated[str, typer.Argument(help="A glob of text files, or a file of SQuAD.")],
    vocab: Annotated[str, typer.Argument(help="A vocab.txt.")],
    size: Annotated[str, typer.Option(help="A name BertConfig.from_name takes.")] = "base",
    length: Annotated[int, typer.Option(help="Pieces in a row.")] = 512,
    places: Annotated[int, typer.Option(help="Sequences in a packed row, at most.")] = 8,
    rows: Annotated[int, typer.Option(help="Packed rows an update.")] = 4,
    steps: Annotated[int, typer.Option(help="Updates, two of which are not timed.")] = 10,
    learning_rate: Annotated[float, typer.Option(help="The peak.")] = 1e-4,
    precision: Annotated[str, typer.Option(help="A Keras dtype policy.")] = "mixed_bfloat16",
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 3,
    score: Annotated[bool, typer.Option(help="Score held-out rows at the end.")] = False,
    processes: Annotated[int, typer.Option(help="For making the data.")] = 2,
):
    """Prints medians of real tokens a second, and the held-out losses."""
    if steps <= _WARM_UP:
        raise typer.BadParameter(f"--steps must be above {_WARM_UP}")
    found, splits = compare(
        text, vocab, size=size, length=length, places=places, rows=rows, steps=steps,
        learning_rate=learning_rate, precision=precision, rounds=rounds, score=score,
        processes=processes,
    )  # fmt: skip
    plain = next(iter(splits.values()))
    table = Table(
        title=f"{size}, {precision}, rows of {length}, {plain.instances:,} sequences of "
        f"{plain.mean_length:.0f} pieces, {rounds} turns"
    )
    columns = ("rows", "padding", "tokens a step", "tokens/s, median", "(range)", "ratio")
    for column in ("", *columns, *(("held-out loss", "MLM", "NSP") if score else ())):
        table.add_column(column, justify="right" if column else "left")
    rates = {name: [turn["rate"] for turn in turns] for name, turns in found.items()}
    unpacked = next(iter(rates.values()))
    for name, turns in found.items():
        scores = turns[0]["scores"]
        shown = ("loss", "masked_lm_loss", "next_sentence_loss") if score else ()
        table.add_row(
            name,
            f"{splits[name].records:,}",
            f"{splits[name].padding:.1%}",
            f"{statistics.median(turn['tokens'] for turn in turns):,.0f}",
            f"{statistics.median(rates[name]):,.0f}",
            f"{min(rates[name]):,.0f} – {max(rates[name]):,.0f}",
            f"{contenders.ratio(rates[name], unpacked):.2f}",
            *(f"{scores[metric]:.3f}" for metric in shown),
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    typer.run(main)
