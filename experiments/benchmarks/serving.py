"""How quickly a text is answered: an exported model beside transformers.

    python -m experiments.benchmarks.serving SQUAD MODEL

SQUAD is a file of SQuAD, whose paragraphs the texts are cut from; MODEL is a checkpoint that
transformers can read as well. Text goes in, the mean of the last layer comes out. Each contender
runs in a fresh process, in turn, so that a busy machine slows all alike: one text of 16, 64 and 256
pieces at a time, then batches of 32 questions and paragraphs in random order.
"""

import importlib.util
import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.contenders import run
from experiments.benchmarks.feature_extraction import read_texts

LENGTHS = (16, 64, 256)
BATCH = 32

# Only TensorFlow is loaded, as by a server.
_OURS = """
import tensorflow as tf
respond = tf.saved_model.load(where).signatures["serving_text"]
def answer(texts):
    return respond(texts=tf.constant(texts))["features"].numpy()
"""
_THEIRS = """
import torch
from transformers import AutoModel, AutoTokenizer
dtype = {{"float32": torch.float32, "bfloat16": torch.bfloat16}}[precision]
tokenizer = AutoTokenizer.from_pretrained(where)
model = AutoModel.from_pretrained(where, dtype=dtype).eval()
@torch.inference_mode()
def answer(texts):
    batch = tokenizer(
        texts, padding=True, truncation=True, max_length={longest}, return_tensors="pt"
    )
    states = model(**batch).last_hidden_state.float()
    mask = batch["attention_mask"][:, :, None]
    return ((states * mask).sum(1) / mask.sum(1)).numpy()
"""
_RUN = """
import json, os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as docs/serving.md advises
where, precision, source = sys.argv[1:]
texts = json.load(open(source))
{contender}
found = {{}}
for length, singles in texts["single"].items():
    seconds = []
    for text in singles[:10] + singles:
        began = time.perf_counter()
        answer([text])
        seconds.append(time.perf_counter() - began)
    found[length] = seconds[10:]
for _ in range(2):  # the first is to warm up
    began = time.perf_counter()
    for batch in texts["batches"]:
        answer(batch)
    rate = sum(map(len, texts["batches"])) / (time.perf_counter() - began)
vector = answer(texts["batches"][0])[0].tolist()
print(json.dumps({{"single": found, "rate": rate, "vector": vector}}))
"""


def make_texts(squad, model, singles, batches):
    """Returns texts of each of LENGTHS pieces, and batches of questions and paragraphs."""
    from keras_bert_ref.checkpoints.opening import open_checkpoint

    tokenizer = open_checkpoint(model).tokenizer
    paragraphs = " ".join(read_texts(squad, 0, 400))
    offsets = tokenizer.encode(paragraphs).offsets[1:-1]
    single = {}
    for length in LENGTHS:
        starts = range(0, length * singles, length)
        # Two pieces are [CLS] and [SEP]; where a cut divides a word there may be one more.
        single[length] = [paragraphs[offsets[n][0] : offsets[n + length - 3][1]] for n in starts]
    mixed = read_texts(squad, batches * BATCH * 5 // 6, batches * BATCH // 6 + 1)
    return {
        "single": single,
        "batches": [mixed[n * BATCH : (n + 1) * BATCH] for n in range(batches)],
    }


def export(model, folder):
    """Writes the SavedModels; returns (name, precision) → (place, program)."""
    from keras_bert_ref import FeatureExtractor, export_saved_model

    contenders = {}
    for precision, dtype in (("float32", "float32"), ("bfloat16", "mixed_bfloat16")):
        extractor = FeatureExtractor(model, layers=-1, max_length=max(LENGTHS), dtype=dtype)
        for name, freeze in (("constants", True), ("variables", False)):
            place = Path(folder, f"{name}-{precision}", "1")
            export_saved_model(extractor, place, freeze=freeze)
            contenders[name, precision] = str(place), _OURS
        if importlib.util.find_spec("transformers"):
            contenders["transformers", precision] = model, _THEIRS
    return contenders


def compare(squad, model, singles, batches, rounds):
    """Returns (contender, precision) → what was found in each turn; the arguments are `main`'s."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "texts.json")
        source.write_text(json.dumps(make_texts(squad, model, singles, batches)))
        contenders = export(model, folder)
        for _ in track(range(rounds), description="turns"):
            for (name, precision), (where, program) in contenders.items():
                program = _RUN.format(contender=program.format(longest=max(LENGTHS)))
                found = run(program, where, precision, str(source))
                results.setdefault((name, precision), []).append(found)
    return results


def main(
    squad: Annotated[Path, typer.Argument(help="dev-v1.1.json or the like.")],
    model: Annotated[str, typer.Argument(help="A checkpoint in the format of transformers.")],
    singles: Annotated[int, typer.Option(help="Texts of each length, one at a time.")] = 100,
    batches: Annotated[int, typer.Option(help="Batches of 32 texts.")] = 10,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.")] = 3,
):
    """Prints medians of the milliseconds of a text, and of texts a second."""
    results = compare(squad, model, singles, batches, rounds)
    title = f"{Path(model).name}, text in, {rounds} turns: p50 and p99 of one text (ms)"
    table = Table(title=title)
    columns = [f"{length} pieces" for length in LENGTHS]
    for column in ("", "", *columns, f"batches of {BATCH}: texts/s", "(range)"):
        table.add_column(column, justify="right" if column else "left")
    for (name, precision), found in results.items():
        latencies = []
        for length in map(str, LENGTHS):
            turns = [[1000 * x for x in one["single"][length]] for one in found]
            p50 = statistics.median(map(statistics.median, turns))
            p99 = statistics.median(statistics.quantiles(turn, n=100)[98] for turn in turns)
            latencies.append(f"{p50:.1f}, {p99:.1f}")
        rates = [one["rate"] for one in found]
        span = f"{min(rates):.0f} – {max(rates):.0f}"
        table.add_row(precision, name, *latencies, f"{statistics.median(rates):.0f}", span)
    Console(width=110).print(table)
    vectors = {key: found[0]["vector"] for key, found in results.items()}
    exact = vectors["constants", "float32"]
    for key, vector in vectors.items():
        apart = max(abs(a - b) for a, b in zip(exact, vector, strict=True))
        Console().print(f"{', '.join(key)}: at most {apart:.1e} from constants, float32")


if __name__ == "__main__":
    typer.run(main)
