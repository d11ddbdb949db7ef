#include "starling/spec/extensions.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

// A row with its own copies of the texts that its traits name.
template <class Row>
struct OwningRow {
  Row row;
  std::deque<std::string> texts;

  void own(std::string_view& text) { text = texts.emplace_back(text); }
};

// Returns a pointer to the row that keeps the texts alive, too.
template <class Row>
std::shared_ptr<const Row> pointer_to(std::shared_ptr<OwningRow<Row>> owning) {
  const Row* row = &owning->row;
  return {std::move(owning), row};
}

template <class Rows, class NameOf>
auto find_row(const Rows& rows, std::string_view name, const NameOf& name_of) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return name_of(*row) == name; });
  return found == rows.end() ? typename Rows::value_type() : *found;
}

[[noreturn]] void refuse_row(const std::string& what) {
  throw ConfigError("starling::Extensions", what);
}

// Checks the names of one kind of row. `known` are the names that Starling has.
class Names {
 public:
  Names(const char* kind, std::vector<std::string_view> known) : kind_(kind), known_(std::move(known)) {}

  void take(std::string_view name, bool has_function) {
    const std::string shown = fmt::format("the {} \"{}\"", kind_, name);
    const bool word = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
             c == '_';
    });
    if (!word) refuse_row(fmt::format("{}: a name consists of letters, digits, - and _", shown));
    if (std::find(known_.begin(), known_.end(), name) != known_.end())
      refuse_row(fmt::format("{}: Starling has this name already. Use another one", shown));
    if (!seen_.emplace(name).second) refuse_row(fmt::format("{} is added twice", shown));
    if (!has_function) refuse_row(fmt::format("{} has no function that makes it", shown));
  }

 private:
  const char* kind_;
  std::vector<std::string_view> known_;
  std::set<std::string, std::less<>> seen_;
};

template <class Table>
std::vector<std::string_view> names_in(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

// The algorithms and the kinds of data that Starling has.
constexpr std::string_view kAlgorithmNames[] = {
    "auto",  "ring", "direct",   "halving-doubling", "binomial-tree", "double-tree",
    "bruck", "star", "pairwise", "dissemination",    "hierarchical"};
constexpr std::string_view kSourceNames[] = {"idx",    "cifar-bin", "images", "text",
                                             "served", "digits",    "grammar"};

}  // namespace

Extensions& Extensions::exchange(const ExchangeTraits& traits, ExchangeMaker make) {
  auto owning = std::make_shared<OwningRow<AddedExchange>>();
  owning->row = {traits, std::move(make)};
  ExchangeTraits& own = owning->row.traits;
  for (std::string_view* text :
       {&own.name, &own.summary, &own.use_when, &own.step, &own.bytes, &own.statistics, &own.assumes,
        &own.guarantees, &own.page, &own.keys, &own.recipe})
    owning->own(*text);
  exchanges_.push_back(pointer_to(std::move(owning)));
  return *this;
}

Extensions& Extensions::codec(const CodecTraits& traits, CodecFactory make) {
  auto owning = std::make_shared<OwningRow<AddedCodec>>();
  owning->row = {traits, std::move(make)};
  owning->own(owning->row.traits.name);
  owning->own(owning->row.traits.settings);
  codecs_.push_back(pointer_to(std::move(owning)));
  return *this;
}

Extensions& Extensions::source(std::string prefix, std::string usage, SourceOpener open) {
  sources_.push_back(
      std::make_shared<AddedSource>(AddedSource{std::move(prefix), std::move(usage), std::move(open)}));
  return *this;
}

Extensions& Extensions::take_data() {
  takes_data_ = true;
  return *this;
}

Extensions& Extensions::all_reduce(std::string name, AllReduceAlgorithm run) {
  all_reduces_.push_back(std::make_shared<AddedAllReduce>(AddedAllReduce{std::move(name), std::move(run)}));
  return *this;
}

void Extensions::check() const {
  Names exchanges("exchange", names_in(exchange_table()));
  for (const auto& row : exchanges_) {
    exchanges.take(row->traits.name, static_cast<bool>(row->make));
    if (row->traits.shards)
      refuse_row(fmt::format(
          "the exchange \"{}\": traits.shards must be false, because train.shard and train.hybrid "
          "train by all-reduce",
          row->traits.name));
  }
  Names codecs("codec", names_in(codec_table()));
  for (const auto& row : codecs_) {
    codecs.take(row->traits.name, static_cast<bool>(row->make));
    if (!row->traits.values.empty())
      refuse_row(fmt::format(
          "the codec \"{}\": traits.values must be empty, because only codecs of Starling form stacks",
          row->traits.name));
  }
  Names sources("data source", {std::begin(kSourceNames), std::end(kSourceNames)});
  for (const auto& row : sources_) sources.take(row->prefix, static_cast<bool>(row->open));
  Names all_reduces("all-reduce", {std::begin(kAlgorithmNames), std::end(kAlgorithmNames)});
  for (const auto& row : all_reduces_) all_reduces.take(row->name, static_cast<bool>(row->run));
}

const AddedExchange* find_added_exchange(const Extensions* added, std::string_view name) {
  if (added == nullptr) return nullptr;
  return find_row(added->exchanges(), name, [](const AddedExchange& row) { return row.traits.name; }).get();
}

std::shared_ptr<const AddedCodec> find_added_codec(const Extensions* added, std::string_view name) {
  if (added == nullptr) return nullptr;
  return find_row(added->codecs(), name, [](const AddedCodec& row) { return row.traits.name; });
}

const AddedSource* find_added_source(const Extensions* added, std::string_view prefix) {
  if (added == nullptr) return nullptr;
  return find_row(added->sources(), prefix,
                  [](const AddedSource& row) { return std::string_view(row.prefix); })
      .get();
}

const AddedAllReduce* find_added_all_reduce(const Extensions* added, std::string_view name) {
  if (added == nullptr) return nullptr;
  return find_row(added->all_reduces(), name,
                  [](const AddedAllReduce& row) { return std::string_view(row.name); })
      .get();
}

}  // namespace starling
