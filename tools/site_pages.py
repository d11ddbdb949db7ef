"""Makes the pages of the site: the manual, the Markdown files that it links, and a page per linked source."""
import json
import os
import pathlib
import re
import shutil
import urllib.parse

from cpp_reference import FOLDER as CPP_FOLDER
from markdown_source import FENCE, HEADING, HTML_LINK, LINK, REFERENCE, split

SECTIONS = [("Tutorial", "tutorial"), ("How-to", "how-to"), ("Reference", "reference"), ("Explanation", "explanation"),
            ("Benchmarks", "benchmarks.md"), ("Evidence", "evidence.md"), ("Design", "design"), ("Project", "project")]
NOT_PAGES = ("docs/doxygen/", "docs/site/")
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".c": "c", ".py": "python", ".toml": "toml", ".cmake": "cmake", ".sh": "bash", ".json": "json",
             ".yml": "yaml", ".txt": "text", ".css": "css"}
PICTURES = (".svg", ".png", ".jpg", ".gif", ".webp")
ITEM = re.compile(r"^( *)([-*+]|\d+[.)])( +)(?=\S)")
POSITION = re.compile(r"<!--\s*nav:\s*(\d+)\s*-->")


def for_site(text):
    """Returns Markdown for GitHub as Markdown that Python-Markdown reads in the same way.

    Lists begin after an empty line, the content of an item is indented by four, and a fence has only its
    language and title.
    """
    out, levels, fence, before = [], [], None, ""
    for line in text.split("\n"):
        m = FENCE.match(line)
        if fence is None and not line.strip():
            out.append("")
            before = ""
            continue
        indent = len(line) - len(line.lstrip(" "))
        item = ITEM.match(line) if fence is None else None
        if fence is None:
            if item or not before or m:  # a line that continues an item without indentation stays in the item
                while levels and indent < levels[-1][1]:
                    levels.pop()
            deep, start = len(levels), levels[-1][1] if levels else 0
            if item and before and not levels and not ITEM.match(before) and not before.startswith((" ", "|", ">")):
                out.append("")
            if item:
                levels.append((indent, item.end()))
                line = f"{' ' * 4 * deep}{item[2].replace(')', '.')} {line[item.end():]}"
            elif levels:
                line = " " * 4 * deep + line[min(indent, start):]
        if m and fence is None:
            fence = (m["fence"], " " * 4 * len(levels), levels[-1][1] if levels else 0)
            language = re.match(r"[\w+-]*", m["info"])[0]
            title = re.search(r'title="[^"]*"', m["info"])
            if language:
                line = f"{fence[1]}{m['fence']}{language}{' ' + title[0] if title else ''}"
        elif fence:
            closes = m and not m["info"].strip() and m["fence"].startswith(fence[0])
            line = fence[1] + line[min(indent, fence[2]):] if line.strip() else ""
            fence = None if closes else fence
        out.append(line)
        before = line if fence is None else ""
    return "\n".join(out)


class Site:
    """The pages below `pages`, made from the work tree at `root`.

    `headers` maps public headers to their pages.
    """

    def __init__(self, root, files, pages, headers):
        self.root, self.files, self.pages, self.headers = root, set(files), pages, headers
        self.folders = {str(parent) for f in files for parent in pathlib.PurePosixPath(f).parents}
        self.written, self.waiting = set(), []

    def place(self, path):
        """Returns the place of a repository's file or folder on the site, or None if it does not exist."""
        if path in self.headers:
            return self.headers[path]
        if path in self.folders and path not in self.files:
            index = f"{path}/index.md"
            return index.removeprefix("docs/") if index in self.files and path.startswith("docs/") else f"source/{path}/index.md"
        if path not in self.files:
            return None
        if path.startswith("docs/") and path.endswith((".md",) + PICTURES):
            return path.removeprefix("docs/")
        if path.endswith(".md"):
            return f"project/{path}"
        return f"source/{path}" if path.endswith(PICTURES) else f"source/{path}.md"

    def target(self, page, path, target):
        """Returns a link of the repository's file `path` for the page `page` of the site."""
        if re.match(r"[a-z][a-z0-9+.-]*:|#|$", target):
            return target
        name, _, anchor = urllib.parse.unquote(target).partition("#")
        wanted = os.path.normpath(os.path.join(os.path.dirname(path), name))
        place = self.place(wanted)
        if place is None:
            return target  # MkDocs reports that the link has no target
        self.waiting.append((wanted, place))
        keep = anchor and place.endswith(".md") and not place.startswith(("source/", CPP_FOLDER))
        return os.path.relpath(place, os.path.dirname(page) or ".") + (f"#{anchor}" if keep else "")

    def rewritten(self, page, path, text):
        """Returns the Markdown `text` of the file `path` with the links of the site."""
        blocks, outside = split(text)
        outside = outside.split("\n")
        lines, inside = text.split("\n"), set()
        for block in blocks:
            inside |= set(range(block.line - 1, block.line + len(block.lines) + 1))
        move = lambda m: m[0][:m.start("target") - m.start()] + self.target(page, path, m["target"]) + m[0][m.end("target") - m.start():]
        prose, out = [], []

        def flush():
            text = "\n".join(prose)
            spans = re.split(r"((?<!`)`+(?!`)(?:.|\n(?!\n))+?(?<!`)`+(?!`))", text)
            # A link may contain code, so code spans are hidden during the search for links.
            hidden = "".join(f"\x00{i}\x00" if i % 2 else part for i, part in enumerate(spans))
            for pattern in (LINK, REFERENCE):
                hidden = pattern.sub(move, hidden)
            hidden = re.sub(r"<(?:a|img|source)\b[^>]*>", lambda m: self.html(page, path, m[0]), hidden)
            out.extend(re.sub(r"\x00(\d+)\x00", lambda m: spans[int(m[1])], hidden).split("\n"))
            prose.clear()

        for number, line in enumerate(lines):
            if number in inside:
                if prose:
                    flush()
                out.append(line)
            else:
                prose.append(line)
        if prose:
            flush()
        return "\n".join(out)

    def html(self, page, path, tag):
        """Returns an HTML tag with the link of the site.

        MkDocs does not change HTML, so pages end with .html there.
        """
        def move(m):
            target = self.target(page, path, m["target"])
            target = re.sub(r"\.md(?=#|$)", ".html", target) if not re.match(r"[a-z]+:", target) else target
            return m[0][:m.start("target") - m.start()] + target + m[0][m.end("target") - m.start():]
        return HTML_LINK.sub(move, tag)

    def write(self, path, place):
        """Writes one file or folder of the repository to its place on the site."""
        if place in self.written or path in self.headers:
            return
        self.written.add(place)
        to = self.pages / place
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(PICTURES):
            shutil.copyfile(self.root / path, to)
        elif path in self.folders and path not in self.files:
            inside = sorted(f for f in self.files if f.startswith(path + "/"))
            to.write_text(f"# {path}/\n\n```text\n" + "\n".join(f.removeprefix(path + "/") for f in inside) + "\n```\n", encoding="utf-8")
        elif place.endswith(".md") and path.endswith(".md"):
            text = (self.root / path).read_text(encoding="utf-8")
            hidden = "---\nhide:\n  - navigation\n---\n\n" if place == "index.md" else ""
            to.write_text(hidden + for_site(self.rewritten(place, path, text)), encoding="utf-8")
        else:
            self.write_source(path, to)

    def write_source(self, path, to):
        text = (self.root / path).read_text(encoding="utf-8", errors="replace")
        language = LANGUAGES.get(pathlib.PurePosixPath(path).suffix)
        if language is None:
            first = text.split("\n", 1)[0]
            language = "python" if "python" in first else "bash" if first.startswith("#!") else "text"
        ticks = "`" * max(4, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
        to.write_text(f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{ticks}{language}\n{text.rstrip()}\n{ticks}\n", encoding="utf-8")

    def write_all(self):
        """Writes the manual, the Markdown at the top of the repository, and every file that these link."""
        for path in sorted(self.files):
            if path.startswith("docs/") and not path.startswith(NOT_PAGES) or re.fullmatch(r"[A-Z]+\.md", path):
                self.waiting.append((path, self.place(path)))
        while self.waiting:
            path, place = self.waiting.pop()
            self.write(path, place)

    def heading(self, page):
        m = HEADING.search(split((self.pages / page).read_text(encoding="utf-8"))[1])
        return re.sub(r"[`*]", "", m[2]) if m else page

    def order(self, page):
        position = POSITION.search((self.pages / page).read_text(encoding="utf-8")[:400])
        return (pathlib.PurePosixPath(page).name != "index.md", int(position[1]) if position else 1000, self.heading(page).lower())

    def below(self, folder):
        """Returns the navigation of a folder: its pages, then its folders."""
        here = self.pages / folder
        entries = [p.relative_to(self.pages).as_posix() for p in here.glob("*.md")]
        if folder == CPP_FOLDER:
            return [f"{folder}/index.md"] + list(self.headers.values())
        # Titles are set here, because MkDocs finds no heading behind a comment.
        found = [page if page.endswith("/index.md") else {self.heading(page): page} for page in sorted(entries, key=self.order)]
        for sub in sorted(p for p in here.iterdir() if p.is_dir() and any(p.rglob("*.md"))):
            path = sub.relative_to(self.pages).as_posix()
            found.append({"C++ headers" if path == CPP_FOLDER else sub.name.capitalize(): self.below(path)})
        return found

    def navigation(self):
        """Returns the value of MkDocs' nav, without the parts of the manual that do not exist."""
        found = [{"Home": "index.md"}]
        for title, place in SECTIONS:
            if (self.pages / place).is_file():
                found.append({title: place})
            elif (self.pages / place).is_dir():
                found.append({title: self.below(place)})
        known = {"index.md"} | {place for _, place in SECTIONS}
        others = sorted(p.name for p in self.pages.glob("*.md") if p.name not in known)
        return json.dumps(found + ([{"More": others}] if others else []), ensure_ascii=False, indent=1)
