"""English prose that every installation already holds: the documentation in its packages."""

import os
import re
import sysconfig
from pathlib import Path

PACKAGES = ("keras", "numpy", "rich", "tensorboard", "tensorflow", "tensorflow_text")

# A string that begins a line. Parsing the modules would take a minute, and find the same.
_DOCSTRING = re.compile(r'^[ \t]*[rR]?"""(.*?)"""', re.DOTALL | re.MULTILINE)
_BLOCKS = re.compile(r"```.*?```|~~~.*?~~~", re.DOTALL)  # code, which is no prose
_MARKUP = re.compile(r"`+|\*\*|:[a-z]+:(?=`)|^\s*[-*]\s+", re.MULTILINE)
_LIST = re.compile(r"(Args|Arguments|Attributes|Raises|Call arguments|Example|Examples|Usage):")
_WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)*[,;:.!?)]*")


def write_installed_text(path):
    """Writes a corpus of docstrings: a paragraph a line, a blank line between modules.

    It covers the packages above and Python's standard library. A paragraph that reads like prose is
    kept once, wherever it stands again, so that nothing held out was seen in training.

    Args:
        path: the file to write.

    Returns:
        How many modules (documents) and how many paragraphs were written.
    """
    seen, modules, paragraphs = set(), 0, 0
    part = Path(path).with_name(Path(path).name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        for module in _modules():
            fresh = [text for text in _prose(module) if text not in seen]
            # Two or more: a document of one sentence has no second half to predict.
            if len(dict.fromkeys(fresh)) >= 2:
                fresh = list(dict.fromkeys(fresh))
                file.write("\n".join(fresh) + "\n\n")
                seen.update(fresh)
                modules += 1
                paragraphs += len(fresh)
    os.replace(part, path)
    return modules, paragraphs


def _modules():
    """Yields Python files in a fixed order."""
    site = sysconfig.get_paths()
    roots = [Path(site["purelib"]) / name for name in PACKAGES] + [Path(site["stdlib"])]
    for root in roots:
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
