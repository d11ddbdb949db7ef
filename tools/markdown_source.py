"""Shared code of the checks in tools/ for Markdown: fenced blocks, prose, headings, anchors and links."""
import re

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)$")
WORD = re.compile(r'(?P<name>[\w.-]+)(?:=(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+)))?')
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$", re.M)
# [text](target "title"). The text may contain code and one level of brackets.
LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?(?P<target>[^()\s>]*(?:\([^()\s]*\)[^()\s>]*)*)>?"
                  r"(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^[ \t]*\[[^\]]+\]:[ \t]*<?(?P<target>[^\s>]+)>?", re.M)
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"(?P<target>[^\"]*)\"")
HTML_ANCHOR = re.compile(r"<\w+\b[^>]*?\b(?:id|name)=\"(?P<name>[^\"]*)\"")


class Block:
    """A fenced block.

    It has the line of its opening fence (1-based), this fence, the words behind the fence, and its lines
    without indentation. `closed` is False if the page ends before a closing fence.
    """

    def __init__(self, line, fence, info, lines, closed):
        self.line, self.fence, self.lines, self.closed = line, fence, lines, closed
        words = [(m["name"], m["quoted"] if m["quoted"] is not None else m["plain"]) for m in WORD.finditer(info)]
        self.language = words[0][0] if words and words[0][1] is None else ""
        self.words = dict(words[1:] if self.language else words)  # "exact" -> None, "title" -> "main.cc"


def split(text):
    """Returns (blocks, outside): the fenced blocks of `text`, and `text` with empty lines in their place."""
    blocks, outside, opened = [], [], None
    for number, line in enumerate(text.split("\n"), 1):
        m = FENCE.match(line)
        if opened is None and m:
            opened = (number, m["indent"], m["fence"], m["info"].strip(), [])
        elif opened is None:
            outside.append(line)
            continue
        elif m and not m["info"].strip() and m["fence"].startswith(opened[2]):
            blocks.append(Block(opened[0], *opened[2:], closed=True))
            opened = None
        else:
            opened[4].append(line[len(opened[1]):] if line.startswith(opened[1]) else line.lstrip())
        outside.append("")
    if opened:
        blocks.append(Block(opened[0], *opened[2:], closed=False))
    return blocks, "\n".join(outside)


def wrong_fences(text):
    """Yields (line, what is wrong) of each fence that does not stand alone in its line or is not closed."""
    blocks, outside = split(text)
    for number, line in enumerate(outside.split("\n"), 1):
        if len(re.findall(r"`{3,}", line)) % 2:
            yield number, "a fence must stand alone in its line"
    for block in blocks:
        for number, line in enumerate(block.lines, block.line + 1):
            if block.fence in line:
                yield number, (f"a fence inside the block of line {block.line}: a closing fence must stand alone in its line, "
                               "and a block that shows fences needs a longer one")
        if not block.closed:
            yield block.line, "the block that begins here has no closing fence"


def without_code(outside):
    """Returns prose with spaces in place of the inside of `code spans` and of HTML comments."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    outside = re.sub(r"<!--.*?-->", blank, outside, flags=re.S)
    return re.sub(r"(?<!`)(`+)(?!`)((?:.|\n(?!\n))+?)(?<!`)\1(?!`)", blank, outside)


def code_spans(outside):
    """Yields (position, text) of each `code span` in prose."""
    for m in re.finditer(r"(?<!`)(`+)(?!`)((?:.|\n(?!\n))+?)(?<!`)\1(?!`)", outside):
        yield m.start(2), m[2]


def slug(heading):
    """Returns the anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"<[^>]*>|[`*]", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    """Returns the anchors of a page. If headings have equal words, only the first has an anchor."""
    _, outside = split(text)
    return ({slug(m[2]) for m in HEADING.finditer(outside)} | {m["name"] for m in HTML_ANCHOR.finditer(outside)})


def links(text):
    """Yields (line, target) of every link and picture."""
    _, outside = split(text)
    prose = without_code(outside)
    for pattern in (LINK, REFERENCE, HTML_LINK):
        for m in pattern.finditer(prose):
            yield prose.count("\n", 0, m.start()) + 1, m["target"]
