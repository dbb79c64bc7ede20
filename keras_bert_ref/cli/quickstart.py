"""`quickstart`: raw text to a pretrained encoder in minutes, what it learned, and served."""

import itertools
import json
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from keras_bert_ref.cli import app
from keras_bert_ref.cli.data import create, learn
from keras_bert_ref.cli.pretraining import Recipe, run
from keras_bert_ref.cli.progress import console
from keras_bert_ref.cli.quickstart_features import compare_with_bag_of_words
from keras_bert_ref.errors import ConfigError, OutputError

_MARK = "quickstart.txt"  # names the folder as ours, so that --overwrite deletes nothing else
# Small enough to learn something in minutes: at this size, more steps beat longer rows.
_CONFIG, _VOCABULARY, _BATCH, _LENGTH, _PREDICTIONS = "tiny", 8000, 32, 64, 10


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="The folder for everything this writes.")],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Your own text files or globs: paragraphs or sentences a line, a blank line "
            "between documents. By default, the documentation in the installed packages."
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Minutes to pretrain for.")] = 5.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier quickstart wrote.")
    ] = False,
):
    """Learn a vocabulary, write shards, pretrain a small BERT, and show what it has learned."""
    from tfrecords.corpus import corpus_files

    if not 0 < minutes < float("inf"):
        raise ConfigError(f"--minutes must be above 0, not {minutes}")
    for file in corpus_files(text) if text else []:
        if Path(file).resolve().is_relative_to(out.resolve()):
            raise OutputError(
                f"{file} lies in {out}, which is to be written: choose another folder"
            )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (overwrite and (out / _MARK).is_file()):
            raise OutputError(
                f"{out} is not empty: choose another folder"
                + (", or allow --overwrite" if (out / _MARK).is_file() else "")
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).write_text("Written by keras-bert-ref quickstart.\n")

    console.rule("1. text")
    texts = text or _installed_text(out / "text")
    console.rule("2. vocabulary")
    learn(texts, out / "vocab.txt", _VOCABULARY, True, None, "replace")
    console.rule("3. pretraining data")
    manifest = _create_data(texts, out)
    console.rule("4. pretraining")
    recipe = _recipe(out / "data", manifest, minutes)
    results = run(
        out / "data",
        out / "run",
        _CONFIG,
        recipe,
        strategy="one-device",
        log_every=50,
        evaluate_every=max(200, recipe.steps // 4),
        checkpoint_every=max(200, recipe.steps // 4),
    )
    console.rule("5. what it learned")
    _show(out, results)
    console.rule("6. features in scikit-learn")
    compare_with_bag_of_words(out / "run" / "model", texts, max_length=_LENGTH)
    console.rule("7. a SavedModel")
    _serve(out)
    _tell_next(out)


def _installed_text(folder):
    from keras_bert_ref.cli.installed_text import write_installed_text

    with console.status("collecting the documentation in the installed packages"):
        files, modules, paragraphs = write_installed_text(folder)
    console.print(
        f"{modules:,} modules with {paragraphs:,} paragraphs of documentation in {folder}",
        markup=False,
    )
    return files


def _create_data(texts, out):
    from keras_bert_ref.tokenization import WordPieceTokenizer
    from tfrecords.settings import InstanceSettings

    return create(
        texts,
        WordPieceTokenizer.from_vocab(out / "vocab.txt"),
        out / "data",
        InstanceSettings(
            max_seq_length=_LENGTH, max_predictions_per_seq=_PREDICTIONS, dupe_factor=3
        ),
        split_sentences="en",
        errors="replace",
        held_out=0.05,
    )


def _recipe(data, manifest, minutes):
    """Times a few steps, then chooses how many fit the minutes."""
    from keras_bert_ref import strategies
    from keras_bert_ref._tensorflow import tf
    from keras_bert_ref.config import BertConfig
    from keras_bert_ref.encoder import BertEncoder
    from keras_bert_ref.models import BertPretrainer
    from keras_bert_ref.optimization import BertAdamW
    from tfrecords.reader import pretraining_dataset

    precision = strategies.fast_precision()
    with console.status("timing a few steps"):
        config = BertConfig.from_name(_CONFIG, vocab_size=manifest.vocabulary["size"])
        model = BertPretrainer(BertEncoder(config, dtype=precision))
        model.compile(optimizer=BertAdamW(1e-4))
        batches = iter(pretraining_dataset(data, _BATCH))
        compiles = strategies.whole_step_compiles()
        step = tf.function(model.train_step, jit_compile=compiles, autograph=False)
        step(next(batches))  # traces
        began, count = time.perf_counter(), 0
        while count < 5 or time.perf_counter() - began < 5:
            step(next(batches))["loss"].numpy()
            count += 1
    rate = count / (time.perf_counter() - began)
    steps = max(100, int(rate * minutes * 60))
    console.print(f"{rate:.1f} steps a second: {steps:,} steps of {_BATCH} rows")
    return Recipe(
        steps=steps,
        batch_size=_BATCH,
        # A small model and few steps take, and need, a higher rate than the paper's 1e-4.
        learning_rate=1e-3,
        warmup_steps=steps // 10,
        precision=precision,
    )


def _show(out, results):
    from keras_bert_ref.masked_prediction import MASK, fill_mask
    from keras_bert_ref.models import BertPretrainer
    from tfrecords.baseline import constant_baseline

    model = BertPretrainer.from_pretrained(out / "run" / "model")
    tokenizer = model.tokenizer
    baseline = constant_baseline(out / "data", tokenizer.vocab_size)
    table = Table(title="on documents it has not seen")
    for column in ("", "this BERT", "baseline", "the baseline"):
        table.add_column(column, justify="left" if column in ("", "the baseline") else "right")
    piece = tokenizer.vocabulary[baseline["commonest_piece"]]
    for label, name, form, meaning in (
        ("MLM accuracy", "masked_lm_accuracy", "{:.1%}", f"always the commonest piece, {piece!r}"),
        ("MLM loss (nats)", "masked_lm_loss", "{:.3f}", "each piece by its frequency"),
        ("NSP accuracy", "next_sentence_accuracy", "{:.1%}", "always the commoner label"),
    ):
        if name in results:
            values = form.format(results[name]), form.format(baseline[name])
            table.add_row(label, *values, meaning)
    console.print(table)

    guesses = Table(title=f"top five for {MASK}", show_lines=True)
    for column in ("sentence", "truth", "predictions"):
        guesses.add_column(column, overflow="fold")
    for sentence, truth in _sentences(out / "data", tokenizer, count=4):
        (best,) = fill_mask(model, sentence)
        predictions = Text("  ").join(
            Text(f"{piece} {p:.0%}", style="green" if piece == truth else "") for piece, p in best
        )
        guesses.add_row(Text(sentence), Text(truth), predictions)
    console.print(guesses)


def _serve(out):
    """Exports the model, and asks what was exported as a server would."""
    from keras_bert_ref._tensorflow import tf
    from keras_bert_ref.export import export_saved_model
    from keras_bert_ref.models import BertPretrainer

    model = BertPretrainer.from_pretrained(out / "run" / "model")
    folder = out / "served" / "1"
    with console.status("exporting, and trying it in a process of its own"):
        export_saved_model(model, folder, top=3)
    served = tf.saved_model.load(str(folder))
    sentences = _sentences(out / "data", model.tokenizer, count=1)
    text = next((sentence for sentence, _ in sentences), "A [MASK].")
    answer = served.signatures["serving_text"](texts=tf.constant([text]))
    request = {"signature_name": "serving_text", "instances": [text]}
    pieces = [piece.decode() for piece in answer["pieces"].numpy()[0, 0]]
    shares = answer["probabilities"].numpy()[0, 0].tolist()
    console.print(f"{folder} answers", markup=False)
    console.print(json.dumps(request, ensure_ascii=False), markup=False, soft_wrap=True)
    guesses = ", ".join(f"{piece} {p:.0%}" for piece, p in zip(pieces, shares, strict=True))
    console.print(f"with {guesses}", markup=False)


def _tell_next(out):
    model = out / "run" / "model"
    # `make quickstart` runs out of an environment that the shell need not be in.
    programs = "" if shutil.which("keras-bert-ref") else f"{Path(sys.argv[0]).parent}/"
    load = f"from keras_bert_ref import load_pretrained; model = load_pretrained('{model}')"
    featurizer = f"BertFeaturizer('{model}', layers=-1)"
    features = f"from keras_bert_ref import BertFeaturizer; features = {featurizer}"
    written = {
        out / "vocab.txt": "the vocabulary",
        out / "data": "TFRecord shards and their manifest",
        out / "run": "checkpoints, metrics.jsonl, TensorBoard logs",
        model: "the model: weights, configuration, vocabulary",
        out / "served": "the same as a SavedModel, for TensorFlow Serving (docs/serving.md)",
    }
    commands = (
        f"{programs}keras-bert-ref pretrain --data {out / 'data'} --out {out / 'mini'} "
        "--config mini --steps 5000 --batch-size 32",
        f"{programs}keras-bert-ref create-data --help",
        f'{programs}python -i -c "{load}"',
        f'{programs}python -i -c "{features}"',
        f"{programs}tensorboard --logdir {out / 'run' / 'logs'}",
    )
    grid = Table.grid(padding=(0, 2))
    for path, what in written.items():
        grid.add_row(str(path), what)
    console.print("\nWritten", style="bold")
    console.print(grid)
    console.print("\nNext", style="bold")
    for command in commands:
        console.print(command, soft_wrap=True, highlight=False, markup=False)


def _sentences(data, tokenizer, count):
    """Yields held-out sentences in which one whole word is masked, and that word."""
    from tfrecords.reader import pretraining_dataset

    rows = pretraining_dataset(data, 1, split="heldout", shuffle=False, epochs=1)
    choose, found, seen = random.Random(0), 0, set()
    for features, labels in rows:
        ids = features["input_ids"].numpy()[0]
        used = labels["masked_lm_weights"].numpy()[0] > 0
        ids[features["masked_lm_positions"].numpy()[0][used]] = labels["masked_lm_ids"].numpy()[0][
            used
        ]
        pieces = [tokenizer.vocabulary[i] for i in ids]
        ends = [n for n, piece in enumerate(pieces) if piece == "."]
        for first, last in itertools.pairwise(ends):
            sentence = pieces[first + 1 : last + 1]
            words = [
                n
                for n, piece in enumerate(sentence[:-1])
                if piece.isalpha() and len(piece) > 3 and not sentence[n + 1].startswith("##")
            ]
            if 8 <= len(sentence) <= 20 and words and "[SEP]" not in sentence:
                masked = choose.choice(words)
                truth = sentence[masked]
                text = tokenizer.decode(ids[first + 1 : last + 1])
                if text in seen or text.count(truth) != 1:
                    continue
                seen.add(text)
                found += 1
                yield text.replace(truth, "[MASK]"), truth
                break
        if found == count:
            return
