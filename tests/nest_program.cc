// A user's program for tests/nest_test.py: several inputs, outputs and targets, packed sequences, and losses
// with weights. Arguments after "--":
//   --task NAME       tagger has packed sequences and a mean per word. vae has a struct of outputs and no
//                     targets. heads has three inputs, two outputs and three targets. One of its parameters
//                     is frozen, one unused. exact has an input that keeps its precision. arity and shapes
//                     cannot train.
//   --trained FILE    Saves the trained module, by rank: FILE.0, FILE.1, …
//   --plain N FILE    Trains N steps in a plain libtorch loop on one process, prints the loss and the
//                     metric on the test data, and saves the module. No rank trains.
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

#include "starling/nn/state.h"
#include "starling/starling.h"

namespace {

constexpr int64_t kSamples = 48, kTest = 14, kBatch = 12;
constexpr double kLr = 0.05;
constexpr int64_t kIgnored = -1;

// Draws the initial weights, which are then equal in both loops.
template <typename Net>
std::shared_ptr<Net> made() {
  torch::manual_seed(11);
  return std::make_shared<Net>();
}

// Names each word of a sentence.
struct Tagger : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear tag{nullptr};

  Tagger() {
    words = register_module("words", torch::nn::Embedding(11, 5));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 6).batch_first(true)));
    tag = register_module("tag", torch::nn::Linear(6, 4));
  }
  torch::Tensor forward(torch::Tensor ids, torch::Tensor lengths) {
    namespace rnn = torch::nn::utils::rnn;
    const auto packed = rnn::pack_padded_sequence(words(ids), lengths, true, /*enforce_sorted=*/false);
    const auto read = std::get<0>(lstm->forward_with_packed_input(packed));
    return tag(std::get<0>(rnn::pad_packed_sequence(read, true, 0, ids.size(1))));
  }
};

starling::WeightedLoss per_word(const torch::Tensor& logits, const torch::Tensor& tags) {
  const auto sum =
      torch::nll_loss(logits.flatten(0, 1).log_softmax(1), tags.flatten(), {}, at::Reduction::Sum, kIgnored);
  return {sum, tags.ne(kIgnored).sum()};
}

starling::Mean words_right(const torch::Tensor& logits, const torch::Tensor& tags) {
  const auto known = tags.ne(kIgnored);
  return {(logits.argmax(2).eq(tags) & known).sum().item<double>(), known.sum().item<double>()};
}

// A data set of torch::data whose samples differ in length.
class Sentences : public torch::data::datasets::Dataset<Sentences> {
 public:
  explicit Sentences(int64_t n, int64_t seed) {
    torch::manual_seed(seed);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t length = 1 + (7 * i) % 10;
      const auto ids = torch::randint(11, {length});
      all_.push_back({ids, ids.remainder(4)});
    }
  }
  torch::data::Example<> get(size_t i) override { return all_.at(i); }
  std::optional<size_t> size() const override { return all_.size(); }

 private:
  std::vector<torch::data::Example<>> all_;
};

struct Heads {
  torch::Tensor values, logits;
};
struct Wanted {
  torch::Tensor values, mask, classes;
};

struct TwoHeads : torch::nn::Module {
  torch::nn::Embedding names{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor frozen, unused;

  TwoHeads() {
    names = register_module("names", torch::nn::Embedding(7, 4));
    first = register_module("first", torch::nn::Linear(9, 6));
    second = register_module("second", torch::nn::Linear(6, 3));
    frozen = register_parameter("frozen", torch::rand({6}), false);
    unused = register_parameter("unused", torch::rand({8}));
  }
  Heads forward(const torch::Tensor& x, const torch::Tensor& name, const torch::Tensor& scale) {
    const auto h = first(torch::cat({x, names(name)}, 1)).tanh() * frozen;
    return {h * scale, second(h)};
  }
};

starling::WeightedLoss masked(const Heads& heads, const Wanted& wanted) {
  const auto errors = (heads.values - wanted.values).square() * wanted.mask;
  return {errors.sum() + torch::nll_loss(heads.logits.log_softmax(1), wanted.classes, {}, at::Reduction::Sum),
          wanted.mask.sum()};
}

starling::Mean classes_right(const Heads& heads, const Wanted& wanted) {
  return starling::top1(heads.logits, wanted.classes);
}

std::shared_ptr<const starling::Source> heads_data(int64_t n, int64_t seed) {
  torch::manual_seed(seed);
  const auto real = [n](int64_t width) { return torch::randn({n, width}, torch::kDouble); };
  return starling::tensor_source({real(5), torch::randint(7, {n}), real(6)},
                                 {real(6), torch::rand({n, 6}, torch::kDouble), torch::randint(3, {n})});
}

struct Coded {
  torch::Tensor image, mean, log_variance;
};

struct Vae : torch::nn::Module {
  torch::nn::Linear encode{nullptr}, decode{nullptr};
  Vae() {
    encode = register_module("encode", torch::nn::Linear(6, 4));
    decode = register_module("decode", torch::nn::Linear(2, 6));
  }
  Coded forward(torch::Tensor x) {
    const auto code = encode(x).chunk(2, 1);
    return {decode(code[0]).sigmoid(), code[0], code[1]};
  }
};

// The input is its own target: the data set has none, and the model returns it.
struct WholeVae : Vae {
  std::tuple<Coded, torch::Tensor> forward(torch::Tensor x) { return {Vae::forward(x), x}; }
};

torch::Tensor elbo(const std::tuple<Coded, torch::Tensor>& outputs) {
  const auto& [coded, x] = outputs;
  const auto divergence =
      (coded.mean.square() + coded.log_variance.exp() - 1 - coded.log_variance).sum(1) / 2;
  return torch::mse_loss(coded.image, x) + 0.1 * divergence.mean();
}

// Only the first input is converted to the type of the parameters.
struct Exact : torch::nn::Module {
  static constexpr int kExactInputs[] = {1};
  torch::nn::Linear layer{nullptr};
  Exact() { layer = register_module("layer", torch::nn::Linear(1, 1)); }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& time) {
    std::printf("types %s %s value %.1f\n", c10::toString(x.scalar_type()), c10::toString(time.scalar_type()),
                time.min().item<double>());
    return layer(x);
  }
};

struct OneInput : torch::nn::Module {
  torch::nn::Linear layer{nullptr};
  OneInput() { layer = register_module("layer", torch::nn::Linear(5, 3)); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
};

struct Job {
  std::string task = "tagger", trained, plain;
  int64_t plain_steps = 0;
};

Job job_of(const std::vector<std::string>& words) {
  Job job;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--task") job.task = words.at(++i);
    if (words[i] == "--trained") job.trained = words.at(++i);
    if (words[i] == "--plain") job.plain_steps = std::stoll(words.at(++i)), job.plain = words.at(++i);
  }
  return job;
}

// The data set of a task.
struct Data {
  std::shared_ptr<const starling::Source> train, test;
};

// A step in a plain loop: the loss is divided by its weight, as for one process.
torch::Tensor mean_loss(const starling::WeightedLoss& loss) {
  return loss.sum / loss.weight;
}
torch::Tensor mean_loss(const torch::Tensor& loss) {
  return loss;
}

// Samples of a data set as a plain loop reads them.
std::vector<torch::Tensor> rows(const starling::Source& source, int64_t first, int64_t count, bool inputs) {
  std::vector<int64_t> indices;
  for (int64_t i = first; i < first + count; ++i) indices.push_back(i);
  const starling::Batch batch = source.read(indices, 0);
  std::vector<torch::Tensor> tensors = inputs ? batch.inputs() : batch.targets();
  for (auto& t : tensors) {
    if (t.is_floating_point()) t = t.to(torch::kDouble);
  }
  return tensors;
}

// forward(net, inputs) and loss(outputs, targets) are those of the task, written out.
template <typename Net, typename Step, typename Measure>
void plain_loop(const Job& job, const Data& data, const Step& loss_of, const Measure& measure) {
  auto net = made<Net>();
  net->to(torch::kDouble);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kLr).momentum(0.9));
  for (int64_t step = 0; step < job.plain_steps; ++step) {
    const int64_t first = step * kBatch % kSamples;
    optimizer.zero_grad();
    mean_loss(loss_of(*net, rows(*data.train, first, kBatch, true), rows(*data.train, first, kBatch, false)))
        .backward();
    optimizer.step();
  }
  torch::NoGradGuard no_grad;
  net->eval();
  const auto inputs = rows(*data.test, 0, kTest, true), targets = rows(*data.test, 0, kTest, false);
  std::printf("plain loss %.15g metric %.15g\n",
              mean_loss(loss_of(*net, inputs, targets)).template item<double>(),
              measure(*net, inputs, targets).value());
  starling::save_model(*net, job.plain);
}

template <typename Net>
void fit(starling::Run& run, const Job& job, const starling::Loss& loss, const Data& data,
         const starling::FitOptions& options = {}) {
  const auto trained = run.fit<Net>(made<Net>, loss, data.train, data.test, options);
  if (!job.trained.empty())
    starling::save_model(*trained.model, job.trained + "." + std::to_string(run.rank()));
}

void train_tagger(starling::Run& run, const Job& job) {
  const auto collate = starling::padded({.target = kIgnored});
  const Data data{starling::dataset(Sentences(kSamples, 1), collate),
                  starling::dataset(Sentences(kTest, 2), collate)};
  if (job.plain.empty()) {
    return fit<Tagger>(run, job, per_word, data, starling::FitOptions().metric("right", words_right));
  }
  plain_loop<Tagger>(
      job, data,
      [](Tagger& net, const auto& in, const auto& t) { return per_word(net.forward(in[0], in[1]), t[0]); },
      [](Tagger& net, const auto& in, const auto& t) {
        return words_right(net.forward(in[0], in[1]), t[0]);
      });
}

void train_heads(starling::Run& run, const Job& job) {
  const Data data{heads_data(kSamples, 1), heads_data(kTest, 2)};
  if (job.plain.empty()) {
    return fit<TwoHeads>(run, job, masked, data, starling::FitOptions().metric("right", classes_right));
  }
  const auto out = [](TwoHeads& net, const auto& in) { return net.forward(in[0], in[1], in[2]); };
  plain_loop<TwoHeads>(
      job, data,
      [&](TwoHeads& net, const auto& in, const auto& t) { return masked(out(net, in), {t[0], t[1], t[2]}); },
      [&](TwoHeads& net, const auto& in, const auto& t) {
        return classes_right(out(net, in), {t[0], t[1], t[2]});
      });
}

void train_vae(starling::Run& run, const Job& job) {
  torch::manual_seed(1);
  const Data data{starling::tensor_source({torch::rand({kSamples, 6})}, {}),
                  starling::tensor_source({torch::rand({kTest, 6})}, {})};
  if (job.plain.empty()) return fit<WholeVae>(run, job, elbo, data);
  plain_loop<WholeVae>(
      job, data, [](WholeVae& net, const auto& in, const auto&) { return elbo(net.forward(in[0])); },
      [](WholeVae&, const auto&, const auto&) { return starling::Mean{0, 1}; });
}

}  // namespace

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv,
                                     {{"train.precision", "fp64"},
                                      {"train.global_batch", kBatch},
                                      {"train.eval_batch", 5},
                                      {"data.order", "sequential"},
                                      {"optimizer.lr", kLr},
                                      {"optimizer.momentum", 0.9}});
  const Job job = job_of(run.arguments());
  if (job.task == "tagger") train_tagger(run, job);
  if (job.task == "heads") train_heads(run, job);
  if (job.task == "vae") train_vae(run, job);
  if (job.task == "exact") {
    const auto x = torch::full({kSamples, 1}, 257.0);
    fit<Exact>(run, job,
               [](const auto& output, const auto& target) { return torch::mse_loss(output, target); },
               {starling::tensor_source({x, x}, {x / 257}), nullptr});
  }
  if (job.task == "arity")
    fit<OneInput>(run, job, starling::cross_entropy, {heads_data(kSamples, 1), nullptr});
  if (job.task == "loss") {
    torch::manual_seed(1);
    const auto x = torch::rand({kSamples, 5});
    const auto loss = [](const torch::Tensor& output, const torch::Tensor& target) {
      return (output - target).mean();
    };
    fit<OneInput>(run, job, loss, {starling::tensor_source({x}, {x, x}), nullptr});
  }
  if (job.task == "shapes") {
    fit<Tagger>(run, job, per_word, {starling::dataset(Sentences(kSamples, 1)), nullptr});
  }
}
