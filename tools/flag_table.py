"""Shared code of the checks in tools/: the flags in the first column of a page's tables exist as written.

The page of the configuration lists every flag with its type and meaning. The program writes that page, and a
test compares both.
"""
import re

HEADER = "Starling"  # the title of the first column
ROW = re.compile(r"^\| `(?P<key>[a-z_]+\.[\w]+)` \| (?P<type>.*?) \| `.*?` \| (?P<flag>.*?) \| (?P<meaning>.*) \|$", re.M)
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
NEEDED = ("--exchange", "--shard")  # each of their words but "none" needs a row
UNCHECKED = re.compile(r"[A-Z][A-Z0-9]*|-?\d+(?:\.\d+)?")  # a placeholder or a number


class Key:
    """A key of the configuration.

    It has the words that are allowed (none: any), the text of its row, and whether its flag takes a value.
    """

    def __init__(self, kind, flag, meaning):
        choice = re.match(r"one of (.*)", kind)
        self.words = choice[1].split(", ") if choice else []
        self.text = f"{kind} {flag} {meaning}"
        self.takes_value = bool(re.search(r"--?[\w-]+ [^-]", flag))

    def allows(self, value):
        """Returns whether `value` has allowed words, or words that the row names, in its parts."""
        for part in value.split(","):
            word = re.split(r"[=:+]", part)[0]
            if UNCHECKED.fullmatch(word):
                continue
            if word not in self.words if self.words else not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", self.text):
                return False
        return True


def read_keys(configuration):
    """Returns (key -> Key, flag -> Key) of the page of the configuration."""
    keys, flags = {}, {}
    for row in ROW.finditer(configuration):
        key = keys[row["key"]] = Key(row["type"], row["flag"].strip("`"), row["meaning"])
        flags.update((name, key) for name in FLAG.findall(row["flag"]))
    return keys, flags


def first_cells(page):
    """Yields (line, cell) of the first column of each table whose first column is titled HEADER."""
    inside = False
    for number, line in enumerate(page.split("\n"), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cell = re.split(r"(?<!\\)\|", line)[1].strip()
        if cell == HEADER:
            inside = True
        elif inside and not re.fullmatch(r":?-+:?", cell):
            yield number, cell


def wrong_command(words, keys, flags):
    """Yields what is wrong with the words of a command: flags, each followed by its value if it takes one."""
    while words:
        flag, words = words[0], words[1:]
        if flag == "--set":
            name, _, value = (words[0] if words else "").partition("=")
            words = words[1:]
            if name not in keys:
                yield f"there is no configuration key {name}"
            elif not keys[name].allows(value):
                yield f"{name} does not take the value {value}"
        elif flag not in flags:
            yield f"the configuration has no flag {flag}"
        elif flags[flag].takes_value:
            if not words or words[0].startswith("-"):
                yield f"{flag} needs a value"
            elif not flags[flag].allows(words[0]):
                yield f"{flag} does not take the value {words[0]}"
            words = words[1:]


def wrong_flags(page, configuration):
    """Yields (line, what is wrong) of the page's tables. Line 1 stands for the page."""
    keys, flags = read_keys(configuration)
    shown = set()
    for line, cell in first_cells(page):
        spans = re.findall(r"`([^`]+)`", cell)
        if not spans:
            yield line, "the first cell of the row names no flag"
        for span in spans:
            words = span.replace("\\|", "|").split()
            shown |= set(zip(words, words[1:]))
            yield from ((line, problem) for problem in wrong_command(words, keys, flags))
    for flag in NEEDED:
        for word in flags[flag].words if flag in flags else []:
            if word != "none" and (flag, word) not in shown:
                yield 1, f"no row has {flag} {word}"
