// Extensions: what a program of yours adds to Starling's own exchanges, codecs, collectives and data sources.
//
//   starling::Extensions extensions;
//   extensions.exchange({.name = "elastic", .keys = "every rho", .lockstep = starling::Lockstep::kRounds},
//                       make_elastic);
//   extensions.codec({.name = "grid", .settings = "step", .error_feedback = true}, make_grid);
//   extensions.source("csv", "csv:FILE", open_csv);
//   extensions.all_reduce("line", line_all_reduce);
//   starling::Run run = starling::init(argc, argv, settings, extensions);
//
// The program then takes --exchange elastic, --codec grid, --data csv:FILE and --collective line. Names that
// are added are checked, shown by --help and saved like those of Starling. Extensions are a value: nothing is
// registered, and two runs of a process may have different ones. Every rank runs the same program and so adds
// the same rows. examples/extend/ has an example of each kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "starling/spec/codec_table.h"
#include "starling/spec/run_spec.h"
#include "starling/spec/strategy_table.h"

namespace starling {

class Codec;
class RemoteTeam;
class Strategy;
struct CodecSpec;
struct DataSets;
struct Elements;
struct ExchangeParts;
struct TensorShape;

// Makes the strategy of an exchange on one rank. Every rank calls it once per run, or once for each
// DistributedOptimizer, and again after ranks were lost if the exchange survives a loss. `parts`
// (parallel/exchange_parts.h) has the configuration, the factory of the model, the group of the replicas and
// the clock. The references in it outlive the strategy, except that of the factory.
// parallel/replica/replica_strategy.h is a base class that leaves two functions to write. Errors: ConfigError
// for a configuration that the exchange cannot train.
using ExchangeMaker = std::function<std::unique_ptr<Strategy>(const ExchangeParts& parts)>;

// Makes a codec (codec/codec.h) for a range of values. `spec` (codec/codec_spec.h) has the word's settings as
// texts in spec.settings. `shapes` are the tensors of the range. Each rank makes a codec for the whole range
// and one for each part of it. Servers make codecs, too. The function is also called once before the ranks
// start, with one tensor of one value, so that a wrong setting is found early. Any thread may call it.
// Errors: ConfigError for a setting that the codec does not take.
using CodecFactory =
    std::function<std::unique_ptr<Codec>(const CodecSpec& spec, const std::vector<TensorShape>& shapes)>;

// What the user asked of a data source.
struct SourceRequest {
  std::string path;         // the text after the prefix and its colon; may be empty
  const DataSpec& data;     // the table `data`. Starling itself applies data.samples and data.test_samples
  uint64_t seed = 0;        // train.seed
  int64_t text_tokens = 0;  // model.tokens
};

// Opens a data source. Every rank calls it in Run::data() and must get equal data. The test set may be null.
// If data.test_source is of this kind, the function is called with the path of data.test_source, too. The
// test set of the result is then the test data, or the training set if the test set is null. Errors:
// ConfigError for a wrong path, DataError for data that cannot be read.
using SourceOpener = std::function<DataSets(const SourceRequest& request)>;

// Reduces `count` elements of `data` in place over the positions of `team` (comm/network/remote_team.h). The
// team has one rank of each host, or every rank if ranks do not share memory. `elements`
// (comm/collective/elements.h) says how elements are combined; only the step that makes the final result
// applies the divisor. All positions must end with equal bits. Any thread may call it: one call at a time for
// a group, and calls for several groups at once. Errors: those of RemoteTeam::move(), which the function lets
// pass.
using AllReduceAlgorithm =
    std::function<void(RemoteTeam& team, void* data, size_t count, const Elements& elements)>;

// An exchange of a program. The texts of the traits belong to the row.
struct AddedExchange {
  // What the exchange is and can do.
  ExchangeTraits traits;
  // Makes its strategy.
  ExchangeMaker make;
};
// A codec of a program. The texts of the traits belong to the row.
struct AddedCodec {
  // What the codec is and can do.
  CodecTraits traits;
  // Makes the codec.
  CodecFactory make;
};
// A data source of a program.
struct AddedSource {
  // The kind of data: what --data has before the first colon.
  std::string prefix;
  // How --data is written, for the help text and messages: "csv:FILE".
  std::string usage;
  // Opens the data.
  SourceOpener open;
};
// An all-reduce between hosts of a program.
struct AddedAllReduce {
  // The word of --collective.
  std::string name;
  // Carries out the all-reduce.
  AllReduceAlgorithm run;
};

// The rows that a program adds. A copy shares the rows.
class Extensions {
 public:
  // Adds an exchange for --exchange. The function copies the texts of `traits`. traits.keys names the keys of
  // the table `exchange` that the exchange reads. traits.shards must be false.
  Extensions& exchange(const ExchangeTraits& traits, ExchangeMaker make);
  // Adds a codec for --codec, and for --pull-codec if traits.weights is true. The function copies the texts
  // of `traits`. traits.settings names the keys that a word may set besides "feedback".
  Extensions& codec(const CodecTraits& traits, CodecFactory make);
  // Adds a kind of data for --data PREFIX or --data PREFIX:PATH, and takes the keys of data as take_data()
  // does. `usage` shows how --data is written: "csv:FILE".
  Extensions& source(std::string prefix, std::string usage, SourceOpener open);
  // Lets the command line choose the data. The program takes --data with Starling's own kinds, such as
  // images:PATH, and all keys of the table `data`. Run::data() opens what they name. A run without --data
  // ends with an error, unless the program sets data.source in code.
  Extensions& take_data();
  // Adds an all-reduce between hosts for --collective. Other collectives are then chosen as by "auto".
  Extensions& all_reduce(std::string name, AllReduceAlgorithm run);

  // The rows of the exchanges. The rows of every kind are in the order in which they were added.
  const std::vector<std::shared_ptr<const AddedExchange>>& exchanges() const { return exchanges_; }
  // The rows of the codecs.
  const std::vector<std::shared_ptr<const AddedCodec>>& codecs() const { return codecs_; }
  // The rows of the data sources.
  const std::vector<std::shared_ptr<const AddedSource>>& sources() const { return sources_; }
  // Returns whether the command line chooses the data.
  bool takes_data() const { return takes_data_ || !sources_.empty(); }
  // The rows of the all-reduces.
  const std::vector<std::shared_ptr<const AddedAllReduce>>& all_reduces() const { return all_reduces_; }

  // Throws ConfigError for a row that cannot be used. init() and join() call it. A row cannot be used in
  // these cases:
  // - The row has no function.
  // - Its name is no word, or another row or Starling has the name.
  // - It has a trait that a program cannot give.
  void check() const;

 private:
  std::vector<std::shared_ptr<const AddedExchange>> exchanges_;
  std::vector<std::shared_ptr<const AddedCodec>> codecs_;
  std::vector<std::shared_ptr<const AddedSource>> sources_;
  bool takes_data_ = false;
  std::vector<std::shared_ptr<const AddedAllReduce>> all_reduces_;
};

// Returns the exchange with this name, or null. `added` may be null here and in the functions below.
const AddedExchange* find_added_exchange(const Extensions* added, std::string_view name);
// Returns the codec with this name, or null.
std::shared_ptr<const AddedCodec> find_added_codec(const Extensions* added, std::string_view name);
// Returns the data source with this prefix, or null.
const AddedSource* find_added_source(const Extensions* added, std::string_view prefix);
// Returns the all-reduce with this name, or null.
const AddedAllReduce* find_added_all_reduce(const Extensions* added, std::string_view name);

}  // namespace starling
