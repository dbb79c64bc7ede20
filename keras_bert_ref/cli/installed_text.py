"""English prose that every installation already holds: the documentation in its packages."""

import os
import re
import sysconfig
from pathlib import Path

from keras_bert_ref.files import replace_text

PACKAGES = ("keras", "numpy", "rich", "tensorboard", "tensorflow", "tensorflow_text")

# A string that begins a line. Parsing the modules would take a minute, and find the same.
_DOCSTRING = re.compile(r'^[ \t]*[rR]?"""(.*?)"""', re.DOTALL | re.MULTILINE)
_BLOCKS = re.compile(r"```.*?```|~~~.*?~~~", re.DOTALL)  # code, which is no prose
_MARKUP = re.compile(r"`+|\*\*|:[a-z]+:(?=`)|^\s*[-*]\s+", re.MULTILINE)
_LIST = re.compile(r"(Args|Arguments|Attributes|Raises|Call arguments|Example|Examples|Usage):")
_WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)*[,;:.!?)]*")


def write_installed_text(folder):
    """Writes a corpus of docstrings: a paragraph a line, a blank line between modules.

    It covers the packages above and Python's standard library, each in a file of its own. A
    paragraph that reads like prose is kept once, wherever it stands again, so that nothing held out
    was seen in training.

    Args:
        folder: where the files are written; made if it is not there.

    Returns:
        The files, and how many modules (documents) and paragraphs they hold.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    seen, files, modules, paragraphs = set(), [], 0, 0
    for name, root in _roots().items():
        documents = []
        for module in _modules(root):
            fresh = list(dict.fromkeys(text for text in _prose(module) if text not in seen))
            # Two or more: a document of one sentence has no second half to predict.
            if len(fresh) >= 2:
                documents.append("\n".join(fresh) + "\n\n")
                seen.update(fresh)
                paragraphs += len(fresh)
        if documents:
            files.append(str(Path(folder, f"{name}.txt")))
            replace_text(files[-1], "".join(documents))
            modules += len(documents)
    return files, modules, paragraphs


def _roots():
    site = sysconfig.get_paths()
    roots = {name: Path(site["purelib"], name) for name in PACKAGES}
    return {**roots, "python": Path(site["stdlib"])}


def _modules(root):
    """Yields the Python files below a folder in a fixed order."""
    for folder, folders, files in os.walk(root):
        # Not the generated interface of TensorFlow, tests, or packages below the library.
        folders[:] = sorted(
            f for f in folders if f not in ("_api", "test", "tests", "site-packages", "idlelib")
        )
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder, name)


def _prose(module):
    """Yields the paragraphs of a module's docstrings that read like prose."""
    try:
        source = module.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    for doc in _DOCSTRING.findall(source):
        for paragraph in re.split(r"\n\s*\n", _BLOCKS.sub("\n\n", doc)):
            text = " ".join(_MARKUP.sub("", paragraph).split())
            if _LIST.match(text):
                continue
            words = text.split()
            plain = sum(bool(_WORD.fullmatch(word)) for word in words)
            if len(words) >= 8 and plain >= 0.8 * len(words) and text[-1] in ".!?":
                yield text
