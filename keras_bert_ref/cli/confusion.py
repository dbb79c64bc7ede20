"""The picture of a confusion matrix."""

from keras_bert_ref.files import replace_figure

_MOST_NUMBERED = 20  # classes; with more, the numbers would cover each other


def draw_confusion(true, predicted, labels, path):
    """Draws how many examples of each class were taken for which.

    Args:
        true: the classes of the examples.
        predicted: those that a model says.
        labels: the names of all classes.
        path: of the PNG.

    Returns:
        Whether matplotlib, an extra, is installed.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    labels = [*labels, *sorted({*true} - {*labels})]  # dev may have some that training has not
    size = 3 + min(0.6 * len(labels), 15)
    figure, axis = pyplot.subplots(figsize=(size + 1, size))
    ConfusionMatrixDisplay(
        confusion_matrix(true, predicted, labels=labels),
        display_labels=[label.replace("$", r"\$") for label in labels],  # no formulas
    ).plot(cmap="Blues", xticks_rotation=30, ax=axis, include_values=len(labels) <= _MOST_NUMBERED)
    figure.tight_layout()
    replace_figure(path, figure)
    return True
