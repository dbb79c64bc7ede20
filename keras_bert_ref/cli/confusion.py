"""The picture of a confusion matrix."""

from keras_bert_ref.files import writing


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
    from sklearn.metrics import ConfusionMatrixDisplay

    size = 3 + 0.6 * len(labels)
    figure, axis = pyplot.subplots(figsize=(size + 1, size))
    ConfusionMatrixDisplay.from_predictions(
        true, predicted, labels=labels, cmap="Blues", xticks_rotation=30, ax=axis
    )
    figure.tight_layout()
    part = path.with_name(f"part.{path.name}")
    with writing(path):
        figure.savefig(part, dpi=110)
        part.replace(path)
    pyplot.close(figure)
    return True
