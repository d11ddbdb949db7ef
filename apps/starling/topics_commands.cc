#include <CLI/CLI.hpp>

#include "apps/starling/invocation.h"
#include "apps/starling/number_option.h"
#include "apps/starling/solver.h"

namespace starling {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;

int run_topics_command(const Invocation& invocation) {
  Config config = invocation.flags.read();
  count_solver_ranks(config);
  return topics_command(config.spec, invocation.topics, invocation.options);
}

void add_topic_model(CLI::App& command, TopicsSpec& what) {
  add_number_option(command, "--topics", what.topics,
                    "Topics. Without this option 100, or 20 without DOCWORD", "K", 1, 65535);
  add_number_option(command, "--alpha", what.alpha, "Prior of each topic in a document", "X", 1e-6, 1e6);
  add_number_option(command, "--beta", what.beta, "Prior of each word in a topic", "X", 1e-6, 1e6);
  add_number_option(command, "--documents", what.documents, "Documents of a generated corpus", "N", 1,
                    int64_t{1} << 32);
  add_number_option(command, "--words", what.words, "Vocabulary of a generated corpus", "N", 1, 1 << 30);
}

void add_topic_sampler(CLI::App& command, TopicsSpec& what) {
  command.add_option("--sampler", what.sampler, "light (LightLDA) or saber (SaberLDA) [light]")
      ->type_name("NAME");
  command.add_option("--start", what.start, "How topics begin: anchors or random [anchors]")
      ->type_name("NAME");
  add_number_option(command, "--sweeps", what.sweeps, "Passes over all tokens", "N", 1, kMost);
  add_number_option(command, "--warm-sweeps", what.warm_sweeps, "First sweeps, in which β falls to its value",
                    "N", 0, kMost);
  add_number_option(command, "--cycles", what.cycles, "Pairs of proposals per token of the sampler light",
                    "N", 1, 1000);
  add_number_option(command, "--slices", what.slices,
                    "Least number of slices of the vocabulary. 0: automatic", "N", 0, 1 << 20);
  add_number_option(command, "--memory-limit", what.memory_limit_mb,
                    "Largest part of the model that a rank may hold, in MB, at least 1. 0 sets no limit",
                    "MB", 0, 1e9);
}

}  // namespace

void add_topics_commands(CLI::App& app, Invocation& invocation) {
  CLI::App& command = add_command(
      app, invocation,
      {.name = "topics",
       .group = kTrainGroup,
       .summary = "Find topics in documents (LDA), by LightLDA or SaberLDA",
       .details =
           "Each rank has its documents. The counts of words are on shards in all ranks, and slices of them "
           "go through the ranks. A token is sampled as in LightLDA (Yuan et al., WWW 2015, arXiv 1412.1576) "
           "or SaberLDA (Li et al., ASPLOS 2017, arXiv 1610.02496). Without DOCWORD, the command generates a "
           "corpus, and compares the topics with the true ones. It uses two ranks unless -n or hosts are "
           "given.",
       .examples = {"starling topics", "starling topics -n 4 --topics 500 docword.txt --save-topics out",
                    "starling topics docword.txt --held-out test.txt --score out/phi.npy"}},
      [&invocation] { return run_topics_command(invocation); });
  TopicsSpec& what = invocation.topics;
  command.add_option("DOCWORD", what.data, "Bag of words in the format of the UCI repository")->type_name("");
  command.add_option("--vocabulary", what.vocabulary, "File with one word per line, for topics.txt")
      ->type_name("FILE");
  add_topic_model(command, what);
  add_topic_sampler(command, what);
  add_number_option(command, "--test-share", what.test_share,
                    "Fraction of the documents that is kept for testing", "X", 0, 0.9);
  command.add_option("--held-out", what.held_out, "Bag of words for testing, in place of --test-share")
      ->type_name("FILE");
  add_number_option(command, "--score-every", what.score_every,
                    "Sweeps between two scores. 0 scores at the end only", "N", 0, kMost);
  command.add_option("--score", what.score, "Score the topics of a phi.npy, and sample nothing")
      ->type_name("FILE");
  command
      .add_option("--save-topics", what.save, "Folder for phi.npy and topics.txt, which all ranks write into")
      ->type_name("DIR");
  command.add_option("--checkpoint", what.checkpoint, "Folder for checkpoints, from which a run goes on")
      ->type_name("DIR");
  add_number_option(command, "--checkpoint-every", what.checkpoint_every,
                    "Sweeps between two checkpoints. 0 writes one at the end only", "N", 0, kMost);
  invocation.flags.add_flags(command, solver_flags());
}

}  // namespace starling
