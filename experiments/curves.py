"""The curves of a pretraining run as a picture: `python -m experiments.curves RUN --out PNG`."""

import argparse
import json
from pathlib import Path

from keras_bert_ref.files import replace_figure
from keras_bert_ref.run_folder import read_metrics

_PANELS = (
    ("masked_lm_loss", "masked language model: loss (nats)"),
    ("masked_lm_accuracy", "masked language model: accuracy"),
    ("next_sentence_accuracy", "next sentence prediction: accuracy"),
)


def draw(run, out, baseline=None):
    """Draws training and held-out curves of a run's `metrics.jsonl`.

    Args:
        run: the folder of the run.
        out: the picture to write.
        baseline: metric → value of a prediction that never looks at its input, or None.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_metrics(Path(run, "metrics.jsonl"))
    panels = [panel for panel in _PANELS if panel[0] in lines[0]]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (name, title) in zip(axes[0], panels, strict=True):
        for split, style in (("train", {"alpha": 0.5}), ("heldout", {"marker": "o", "ms": 3})):
            points = [(line["step"], line[name]) for line in lines if line["split"] == split]
            if points:
                axis.plot(*zip(*points, strict=True), label=split, **style)
        if baseline:
            axis.axhline(baseline[name], color="grey", linestyle=":", label="constant prediction")
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    replace_figure(out, figure)


def main():
    """Reads the arguments and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of a pretraining run")
    parser.add_argument("--out", required=True, help="picture to write")
    parser.add_argument("--data", help="the run's data, to draw the constant baseline")
    options = parser.parse_args()
    baseline = None
    if options.data:
        from tfrecords.baseline import constant_baseline
        from tfrecords.manifest import Manifest

        size = Manifest.load(Path(options.data)).vocabulary["size"]
        baseline = constant_baseline(options.data, size)
        print(json.dumps(baseline, indent=2))
    draw(options.run, options.out, baseline)


if __name__ == "__main__":
    main()
