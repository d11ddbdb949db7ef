#!/usr/bin/env python3
"""Compares `starling topics` with tomotopy, gensim and scikit-learn.

    python3 bench/topics/compare.py --starling build/release/starling --topics 1000

The corpus is a part of Wikipedia that the tests of gensim contain. Its paragraphs are the documents.
All programs train on equal documents with one thread, one after another. `starling topics --score`
scores all φ.

The score of tomotopy after 200 sweeps is the target. Both programs are scored every 10 sweeps, outside
their times. The first scored sweep within 0.5 % of the target counts. The output has the CPU seconds and
the wall seconds of both programs until that sweep, and those of tomotopy for 200 sweeps. CPU seconds
matter on a machine that has other work. The times of starling are those of whole processes, which read
the corpus. The times of the other programs are those of the training only.

The other programs are installed into build/venv-topics, whose Python is that of the script (3.11 to 3.13).
"""
import argparse
import bz2
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from pinned_environment import enter_environment  # noqa: E402, pylint: disable=wrong-import-position

TEST_EVERY = 20  # documents
SHORTEST = 25  # tokens of a document
FEWEST_DOCUMENTS = 5  # of a word


def paragraphs():
    """Yields the paragraphs of the articles as lists of words."""
    import gensim  # pylint: disable=import-outside-toplevel
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki  # pylint: disable=import-outside-toplevel
    folder = pathlib.Path(gensim.__file__).parent / "test" / "test_data"
    file = folder / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    with bz2.open(file) as f:
        for _, text, _ in extract_pages(f, ("0", )):
            for paragraph in re.split(r"\n+", filter_wiki(text)):
                yield re.findall(r"[a-z]{3,15}", paragraph.lower())


def write_corpus(folder):
    """Writes the bags of words and returns the training documents as lists of word numbers, and V."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # pylint: disable=import-outside-toplevel
    texts = [[w for w in p if w not in ENGLISH_STOP_WORDS] for p in paragraphs()]
    seen = {}
    for text in texts:
        for word in set(text):
            seen[word] = seen.get(word, 0) + 1
    vocabulary = sorted(w for w, n in seen.items() if n >= FEWEST_DOCUMENTS)
    number = {w: i for i, w in enumerate(vocabulary)}
    documents = [d for d in ([number[w] for w in text if w in number] for text in texts) if len(d) >= SHORTEST]
    parts = {"train": [d for i, d in enumerate(documents) if i % TEST_EVERY],
             "test": [d for i, d in enumerate(documents) if i % TEST_EVERY == 0]}
    for name, part in parts.items():
        entries = [(d + 1, w + 1, document.count(w)) for d, document in enumerate(part) for w in sorted(set(document))]
        with open(folder / f"{name}.txt", "w", encoding="ascii") as f:
            f.write(f"{len(part)}\n{len(vocabulary)}\n{len(entries)}\n")
            f.writelines(f"{d} {w} {n}\n" for d, w, n in entries)
    return parts["train"], len(vocabulary)


class Times:
    """CPU and wall seconds of a block, of this process or of its children."""

    def __init__(self, who=resource.RUSAGE_SELF):
        self.who = who

    def __enter__(self):
        self.begin = self.now()
        return self

    def __exit__(self, *_):
        self.cpu, self.wall = (b - a for a, b in zip(self.begin, self.now()))

    def now(self):
        usage = resource.getrusage(self.who)
        return usage.ru_utime + usage.ru_stime, time.monotonic()


class Comparison:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.documents, self.words = write_corpus(folder)
        self.tokens = sum(map(len, self.documents))

    def starling(self, *words):
        done = subprocess.run([self.args.starling, "topics", "--json", "-n", "1", "--alpha", str(self.args.alpha), "--seed",
                               str(self.args.seed), *map(str, words)],
                              stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def score(self, phi):
        """Returns the perplexity of a matrix with a row for each word."""
        import numpy  # pylint: disable=import-outside-toplevel
        path = self.folder / "phi.npy"
        numpy.save(path, numpy.ascontiguousarray(phi, dtype=numpy.float32))
        test = self.folder / "test.txt"
        return self.starling(self.folder / "train.txt", "--held-out", test, "--score", path)[-1]["perplexity"]

    def tomotopy(self):
        import numpy  # pylint: disable=import-outside-toplevel
        import tomotopy  # pylint: disable=import-outside-toplevel
        k = self.args.topics
        model = tomotopy.LDAModel(k=k, alpha=self.args.alpha, eta=self.args.beta, seed=self.args.seed)
        model.optim_interval = 0
        for document in self.documents:
            model.add_doc([str(w) for w in document])
        model.train(0)
        used, scores = [], {}
        for sweep in range(self.args.score_every, self.args.sweeps + 1, self.args.score_every):
            with Times() as times:
                model.train(self.args.score_every, workers=1, show_progress=False)
            used.append(times)
            phi = numpy.full((self.words, k), 1e-12, dtype=numpy.float32)
            rows = [int(w) for w in model.used_vocabs]
            phi[rows] = numpy.stack([model.get_topic_word_dist(i) for i in range(k)], axis=1)
            scores[sweep] = self.score(phi)
        return used, scores

    def gensim(self):
        from gensim.models import LdaModel  # pylint: disable=import-outside-toplevel
        bags = [sorted((w, d.count(w)) for w in set(d)) for d in self.documents]
        with Times() as times:
            model = LdaModel(bags, num_topics=self.args.topics, id2word={i: str(i) for i in range(self.words)},
                             alpha=self.args.alpha, eta=self.args.beta, passes=self.args.passes,
                             random_state=self.args.seed)
        return times, self.score(model.get_topics().T)

    def sklearn(self):
        import numpy  # pylint: disable=import-outside-toplevel
        from scipy.sparse import csr_matrix  # pylint: disable=import-outside-toplevel
        from sklearn.decomposition import LatentDirichletAllocation  # pylint: disable=import-outside-toplevel
        rows = numpy.repeat(numpy.arange(len(self.documents)), [len(d) for d in self.documents])
        columns = numpy.concatenate([numpy.array(d) for d in self.documents])
        counts = csr_matrix((numpy.ones(len(rows)), (rows, columns)), shape=(len(self.documents), self.words))
        model = LatentDirichletAllocation(self.args.topics, doc_topic_prior=self.args.alpha,
                                          topic_word_prior=self.args.beta, learning_method="online",
                                          max_iter=self.args.passes, random_state=self.args.seed)
        with Times() as times:
            model.fit(counts)
        return times, self.score((model.components_ / model.components_.sum(axis=1, keepdims=True)).T)

    def starling_scores(self):
        """Returns the scores by sweep."""
        return {e["sweep"]: e["perplexity"] for e in self.starling(
            self.folder / "train.txt", "--held-out", self.folder / "test.txt", "--topics", self.args.topics,
            "--sweeps", self.args.most_sweeps, "--warm-sweeps", self.args.warm_sweeps, "--score-every",
            self.args.score_every, *self.training()) if e["event"] == "sweep" and "perplexity" in e}

    def training(self):
        return ["--beta", self.args.beta, "--cycles", self.args.cycles, *self.args.words]

    def timed_starling(self, sweeps):
        with Times(resource.RUSAGE_CHILDREN) as times:
            self.starling(self.folder / "train.txt", "--test-share", 0, "--topics", self.args.topics, "--sweeps",
                          sweeps, "--warm-sweeps", self.args.warm_sweeps, *self.training())
        return times


class Sum:
    """The sum of several times."""

    def __init__(self, times):
        self.cpu, self.wall = sum(t.cpu for t in times), sum(t.wall for t in times)


def sweeps_to(scores, target):
    """Returns the first scored sweep whose score is within 0.5 % of the target."""
    return next((s for s, p in scores.items() if p <= 1.005 * target), None)


def spread(values):
    return f"{min(values):.1f} / {statistics.median(values):.1f} / {max(values):.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starling", required=True)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--sweeps", type=int, default=200, help="of tomotopy; a multiple of --score-every")
    parser.add_argument("--most-sweeps", type=int, default=200, help="of starling")
    parser.add_argument("--warm-sweeps", type=int, default=20)
    parser.add_argument("--score-every", type=int, default=10)
    parser.add_argument("--cycles", type=int, default=4, help="of starling")
    parser.add_argument("--passes", type=int, default=0, help="of gensim and scikit-learn; 0 leaves them out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/topics-bench"))
    parser.add_argument("words", nargs="*", help="options of starling topics")
    args = parser.parse_args()
    enter_environment("topics")
    args.folder.mkdir(parents=True, exist_ok=True)
    run = Comparison(args, args.folder)
    print(f"{len(run.documents)} documents, {run.words} words, {run.tokens} tokens, K = {args.topics}", flush=True)
    theirs, whole, ours = [], [], []
    needed = None
    for number in range(args.rounds):
        used, scores = run.tomotopy()
        if number == 0:
            target = scores[args.sweeps]
            their_sweep = sweeps_to(scores, target)
            print("tomotopy:", " ".join(f"{s}:{p:.1f}" for s, p in scores.items()), flush=True)
            scores = run.starling_scores()
            print("starling:", " ".join(f"{s}:{p:.1f}" for s, p in scores.items()), flush=True)
            needed = sweeps_to(scores, target)
            if needed is None:
                sys.exit("starling did not reach the score")
        theirs.append(Sum(used[:their_sweep // args.score_every]))
        whole.append(Sum(used))
        ours.append(run.timed_starling(needed))
        print(f"tomotopy: {their_sweep} sweeps, cpu {theirs[-1].cpu:.1f} s, wall {theirs[-1].wall:.1f} s; "
              f"{args.sweeps} sweeps, cpu {whole[-1].cpu:.1f} s, wall {whole[-1].wall:.1f} s", flush=True)
        print(f"starling: {needed} sweeps, cpu {ours[-1].cpu:.1f} s, wall {ours[-1].wall:.1f} s", flush=True)
    for name, unit in (("cpu", "CPU seconds"), ("wall", "wall seconds")):
        a, b, c = ([getattr(t, name) for t in side] for side in (ours, theirs, whole))
        print(f"{unit}, min / median / max: starling {spread(a)}, tomotopy {spread(b)}, its {args.sweeps} sweeps "
              f"{spread(c)}, ratio of the medians {statistics.median(a) / statistics.median(b):.3f}")
    if args.passes:
        for name in ("gensim", "sklearn"):
            times, score = getattr(run, name)()
            print(f"{name}: {args.passes} passes, cpu {times.cpu:.1f} s, wall {times.wall:.1f} s, perplexity "
                  f"{score:.1f}", flush=True)


if __name__ == "__main__":
    main()
