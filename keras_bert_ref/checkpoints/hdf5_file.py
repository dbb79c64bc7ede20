"""Reads the weights that Keras writes as HDF5, one tensor at a time."""

from pathlib import Path

from keras_bert_ref.errors import CheckpointError
from keras_bert_ref.files import first_line, opening


class Hdf5File:
    """The datasets of an HDF5 file by their paths.

    Args:
        path: the file.

    Attributes:
        shapes: tensor name → shape.
        dtypes: tensor name → name of its dtype.

    Raises:
        CheckpointError: it is missing or damaged.
    """

    def __init__(self, path):
        import h5py

        self.path = Path(path)
        self.shapes, self.dtypes = {}, {}

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                self.shapes[name] = tuple(item.shape)
                self.dtypes[name] = item.dtype.name

        with opening(path), open(path, "rb"):
            pass  # a missing file in our own words
        try:
            with h5py.File(path, "r") as file:
                file.visititems(visit)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from None

    def read(self, name):
        """Returns a tensor as an array.

        Raises:
            CheckpointError: its data is damaged.
        """
        import h5py

        try:
            with h5py.File(self.path, "r") as file:
                return file[name][()]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error):
        return CheckpointError(
            f"{self.path} is damaged or no HDF5 file: {first_line(error)}: fetch it again"
        )
