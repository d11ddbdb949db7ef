"""Makes the C++ reference of the site.

Doxygen reads the public headers, and this module writes a page for each.
"""
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree as xml

from cpp_source import code_only

FOLDER = "reference/cpp"
HEADERS, UNDOCUMENTED = "docs/doxygen/public_headers.txt", "docs/doxygen/undocumented.txt"
WARNING = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+): (?:warning|error): (?P<text>.*)$")
MEMBER = re.compile(r"^Member (?P<name>.*) \((?P<kind>[\w ]+)\) of (?:class|struct|namespace|file) (?P<scope>\S+) is not documented\.$")
COMPOUND = re.compile(r"^Compound (?P<name>.*) is not documented\.$")


def entries(path):
    """Returns the lines of a list, without comments."""
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]


def page_of(header):
    """Returns the page of a header on the site: starling/codec/codec.h -> reference/cpp/codec-codec.md."""
    return f"{FOLDER}/{header.removeprefix('starling/').removesuffix('.h').replace('/', '-')}.md"


def run_doxygen(root, headers, work):
    """Runs Doxygen, which writes to work/xml. Returns the lines that it printed."""
    settings = (root / "docs/doxygen/Doxyfile").read_text(encoding="utf-8") + "\n".join([
        f'OUTPUT_DIRECTORY = "{work}"', "INPUT = " + " ".join(f'"{root / h}"' for h in headers),
        f'INPUT_FILTER = "{root}/tools/doxygen_filter"', f'STRIP_FROM_PATH = "{root}"', ""])
    work.mkdir(parents=True, exist_ok=True)
    (work / "Doxyfile").write_text(settings, encoding="utf-8")
    done = subprocess.run(["doxygen", str(work / "Doxyfile")], cwd=root, capture_output=True, text=True)
    said = [line.removeprefix(f"{root}/") for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said if done.returncode == 0 or said else [f"doxygen ended with status {done.returncode}"]


def is_given(name):
    """Returns whether a member needs no comment.

    Such members are destructors, copies, moves, and defaulted or deleted functions.
    """
    own = re.match(r"(\w+)\((?:const )?(\w+) ?&&?(?: ?\w+)?\)", name)
    return name.startswith("~") or bool(re.search(r"=\s*(default|delete)$", name)) or bool(own and own[1] == own[2])


def undocumented(said):
    """Returns (declarations without a comment, as "HEADER NAME"; every other line that Doxygen printed)."""
    lacking, others = {}, []
    for line in said:
        m = WARNING.match(line)
        member, compound = (MEMBER.match(m["text"]), COMPOUND.match(m["text"])) if m else (None, None)
        if member:
            if not is_given(member["name"]):
                lacking[f"{m['file']} {member['scope']}::{member['name']}"] = int(m["line"])
        elif compound:
            lacking[f"{m['file']} {compound['name']}"] = int(m["line"])
        else:
            others.append(line)
    return lacking, others


def warnings_of(root, said):
    """Returns the problems of a run of Doxygen, without declarations that the list UNDOCUMENTED permits."""
    known = set(entries(root / UNDOCUMENTED))
    lacking, problems = undocumented(said)
    for name, line in lacking.items():
        if name not in known:
            header, declaration = name.split(" ", 1)
            problems.append(f"{header}:{line}: {declaration} has no comment")
    problems += [f"{UNDOCUMENTED}: {name} has a comment or no longer exists; run: tools/build_docs --shrink" for name in sorted(known - set(lacking))]
    return problems


def drop_documented(root, said):
    """Deletes the lines of the list whose declarations have a comment or no longer exist. Adds no line."""
    lacking, path = undocumented(said)[0], root / UNDOCUMENTED
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("#") or line.strip() in lacking]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")


def escaped(text):
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


class Writer:
    """Writes descriptions as Markdown.

    `targets` maps Doxygen's references to places: refid -> (page, anchor).
    """

    def __init__(self, page, targets):
        self.page, self.targets = page, targets

    def link(self, refid):
        page, anchor = self.targets.get(refid, (None, None))
        if not page:
            return None
        return (os.path.relpath(page, pathlib.PurePosixPath(self.page).parent) if page != self.page else "") + (f"#{anchor}" if anchor else "")

    def inline(self, node):
        out = escaped(" ".join((node.text or "").split("\n")))
        for child in node:
            out += self.element(child) + escaped(" ".join((child.tail or "").split("\n")))
        return out

    def element(self, node):
        if node.tag == "computeroutput":
            return "`" + "".join(node.itertext()) + "`"
        if node.tag in ("bold", "emphasis"):
            mark = "**" if node.tag == "bold" else "*"
            return mark + self.inline(node).strip() + mark
        if node.tag == "ref":
            target = self.link(node.get("refid"))
            return f"[{self.inline(node)}]({target})" if target else self.inline(node)
        if node.tag == "ulink":
            return f"[{self.inline(node)}]({node.get('url')})"
        if node.tag in ("verbatim", "programlisting", "preformatted"):
            lines = "".join(node.itertext()).strip("\n").split("\n")
            return "\n\n```cpp\n" + "\n".join(lines) + "\n```\n\n"
        if node.tag in ("itemizedlist", "orderedlist"):
            items = [" ".join(self.block(item).split()) for item in node]
            return "\n\n" + "\n".join(("- " if node.tag == "itemizedlist" else "1. ") + item for item in items) + "\n\n"
        if node.tag in ("mdash", "ndash"):
            # The hyphens appear as written in the comment. Doxygen turns them into dashes.
            return "---" if node.tag == "mdash" else "--"
        return self.inline(node)

    def block(self, node):
        """Returns the paragraphs below `node` as Markdown."""
        return "\n\n".join(text for text in (self.inline(para).strip() for para in node.iter("para")) if text)

    def description(self, node):
        found = [self.block(part) for part in (node.find("briefdescription"), node.find("detaileddescription")) if part is not None]
        return re.sub(r"(?m)(?<=^```\n\n) +", "", "\n\n".join(text for text in found if text))

    def first_sentence(self, node):
        text = " ".join(self.description(node).split("\n\n")[0].split())
        return re.split(r"(?<=[.:])\s+(?=[A-Z`*])", text)[0]


class Source:
    """The text of a header. Declarations are shown as they are written."""

    def __init__(self, path):
        text = path.read_text(encoding="utf-8")
        self.lines, self.code = text.split("\n"), code_only(text).split("\n")

    def declaration(self, line):
        """Returns the declaration whose name is in `line` (1-based), without its comments and its body."""
        first = line - 1
        while first and self.code[first - 1].strip() and not re.search(r"[;{}:]\s*$|^\s*#", self.code[first - 1].rstrip()):
            first -= 1
        text, depth = [], 0
        for number in range(first, len(self.lines)):
            code, shown = self.code[number], self.lines[number]
            for i, c in enumerate(code):
                depth += {"(": 1, ")": -1}.get(c, 0)
                initializers = c == ":" and "::" not in code[max(i - 1, 0):i + 2] and ")" in " ".join(text) + code[:i]
                if depth == 0 and (c == ";" or initializers or c == "{" and self.opens_body(text, code[:i])):
                    text.append(shown[:i].rstrip())
                    return self.dedent(text)
            text.append(shown[:len(code.rstrip())])
        return self.dedent(text)

    @staticmethod
    def opens_body(before, line):
        head = " ".join(before + [line])
        return not re.search(r"=\s*$|[\w>]$", head.rstrip()) or bool(re.search(r"\)\s*(?:const|noexcept|override)*$", head.rstrip()))

    @staticmethod
    def dedent(text):
        text = [line for line in text if line.strip()]
        indent = min((len(line) - len(line.lstrip()) for line in text), default=0)
        return re.sub(r"(?<!;)$", ";", "\n".join(line[indent:] for line in text)) if text else ""


class Reference:
    """The classes and members that Doxygen found, by header."""

    def __init__(self, root, headers, work):
        self.root, self.headers, self.pages, self.targets = root, headers, {h: page_of(h) for h in headers}, {}
        self.files, self.classes, self.members = {}, {h: [] for h in headers}, {h: [] for h in headers}
        for path in sorted((work / "xml").glob("*.xml")):
            compound = xml.parse(path).getroot().find("compounddef")
            if compound is not None:
                self.take(compound)

    def take(self, compound):
        kind, location = compound.get("kind"), compound.find("location")
        header = location.get("file") if location is not None else None
        if kind == "file" and header in self.pages:
            self.files[header] = compound
            self.targets[compound.get("id")] = (self.pages[header], "")
        elif kind in ("class", "struct") and header in self.pages and compound.get("prot") != "private":
            self.classes[header].append(compound)
            name = compound.findtext("compoundname").removeprefix("starling::")
            self.targets[compound.get("id")] = (self.pages[header], self.anchor(name))
            for member in self.public(compound):
                self.targets[member.get("id")] = (self.pages[header], self.anchor(f"{name}.{member.findtext('name')}"))
        if kind in ("namespace", "file"):
            for member in compound.findall("sectiondef/memberdef"):
                header = member.find("location").get("file")
                if header in self.pages and member.get("id") not in self.targets:
                    self.members[header].append(member)
                    self.targets[member.get("id")] = (self.pages[header], self.anchor(member.findtext("name")))

    @staticmethod
    def anchor(name):
        return re.sub(r"[^\w.-]", "-", name.replace("::", "."))

    @staticmethod
    def public(compound):
        found = [m for section in compound.findall("sectiondef") for m in section
                 if m.tag == "memberdef" and m.get("prot") in ("public", "protected") and m.get("kind") != "friend"]
        return [m for m in sorted(found, key=lambda m: int(m.find("location").get("line")))
                if not is_given(m.findtext("name") + (m.findtext("argsstring") or "").replace(" &", " &"))]

    def member(self, writer, source, member, level, scope=""):
        name, line = member.findtext("name"), int(member.find("location").get("line"))
        text = [f"{'#' * level} `{name}` {{ #{self.anchor(scope + name)} }}", "", "```cpp", source.declaration(line), "```", "",
                writer.description(member), ""]
        values = [(v.findtext("name"), writer.description(v)) for v in member.findall("enumvalue")]
        if member.get("kind") != "enum":
            return text
        text[3] = f"enum {'class ' if member.get('strong') == 'yes' else ''}{name};"
        if any(said for _, said in values):
            return text + ["| Value | Meaning |", "|---|---|"] + [f"| `{n}` | {' '.join(said.split())} |" for n, said in values] + [""]
        return text + ["Values: " + ", ".join(f"`{n}`" for n, _ in values) + ".", ""]

    def compound(self, writer, source, compound):
        """Returns the lines for a class or struct: description, table of fields, functions."""
        name = compound.findtext("compoundname").removeprefix("starling::")
        bases = ", ".join(f"`{b.text.removeprefix('starling::')}`" for b in compound.findall("basecompoundref"))
        text = [f"## `{compound.get('kind')} {name}` {{ #{self.anchor(name)} }}", "", f"Derives from {bases}." if bases else "", "",
                writer.description(compound), ""]
        members = self.public(compound)
        fields = [m for m in members if m.get("kind") == "variable"]
        if fields:
            text += ["| Field | Meaning |", "|---|---|"]
            for m in fields:
                shown = " ".join(source.declaration(int(m.find("location").get("line"))).rstrip(";").split())
                meaning = " ".join(writer.description(m).split())
                text.append(f"| <code id=\"{self.anchor(name + '.' + m.findtext('name'))}\">{escaped(shown)}</code> | {meaning} |")
            text.append("")
        for m in members:
            if m.get("kind") != "variable":
                text += self.member(writer, source, m, 3, name + ".")
        return text

    def page(self, header):
        writer, source = Writer(self.pages[header], self.targets), Source(self.root / header)
        text = [f"# {header}", "", "```cpp", f'#include "{header}"', "```", ""]
        if header in self.files:
            text += [writer.description(self.files[header]), ""]
        parts = [(int(c.find("location").get("line")), self.compound, c) for c in self.classes[header]]
        parts += [(int(m.find("location").get("line")), self.member, m) for m in self.members[header]]
        seen = set()
        for _, write, node in sorted(parts, key=lambda part: part[0]):
            lines = write(writer, source, node, 2) if write == self.member else write(writer, source, node)
            anchor = re.search(r"\{ #(\S+) \}", lines[0])
            if anchor and anchor[1] in seen:  # an overload
                lines[0] = lines[0].replace(anchor[0], "")
            seen.add(anchor[1] if anchor else "")
            text += lines
        return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).rstrip() + "\n"

    def index(self):
        text = ["# C++ headers", "", "These headers are the library's public interface. A program includes `starling/starling.h`. "
                "The other headers declare what that header includes and what an extension implements.", "",
                "| Header | What it declares |", "|---|---|"]
        for header in self.headers:
            writer = Writer(f"{FOLDER}/index.md", self.targets)
            said = writer.first_sentence(self.files[header]) if header in self.files else ""
            text.append(f"| [{header}]({os.path.basename(self.pages[header])}) | {said} |")
        return "\n".join(text) + "\n"

    def write(self, pages):
        """Writes every page below `pages`."""
        (pages / FOLDER).mkdir(parents=True, exist_ok=True)
        (pages / FOLDER / "index.md").write_text(self.index(), encoding="utf-8")
        for header in self.headers:
            (pages / self.pages[header]).write_text(self.page(header), encoding="utf-8")
