"""What each layer of an encoder scores, as a picture."""

import dataclasses

from keras_bert_ref.files import replace_figure

_MARKERS, _STYLES = "os^v", ("-", "--")


@dataclasses.dataclass(frozen=True)
class Panel:
    """A diagram of the picture.

    Attributes:
        title: above it.
        score: the name of what is measured.
        curves: label → layer → score.
        lines: label → score that has no layer, such as a baseline's.
    """

    title: str
    score: str
    curves: dict[str, dict[int, float]]
    lines: dict[str, float] = dataclasses.field(default_factory=dict)


def draw(panels, path):
    """Draws panels beside each other into a PNG file.

    Raises:
        OutputError: the file cannot be written; an older one is untouched.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        _draw_panel(axis, panel)
    figure.tight_layout()
    replace_figure(path, figure)


def _draw_panel(axis, panel):
    for n, (label, scores) in enumerate(panel.curves.items()):
        style = {"marker": _MARKERS[n % 4], "linestyle": _STYLES[n % 2]}
        axis.plot(list(scores), list(scores.values()), label=label, **style)
    for n, (label, score) in enumerate(panel.lines.items()):
        axis.axhline(score, color="grey", linestyle=("--", ":")[n % 2], label=label)
    axis.set(title=panel.title, xlabel="layer", ylabel=panel.score)
    axis.set_xticks(sorted({layer for scores in panel.curves.values() for layer in scores}))
    axis.grid(alpha=0.3)
    axis.legend()
