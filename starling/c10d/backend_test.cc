// Compares every operation of the backend between ranks that are threads with a naive computation.
#include "starling/c10d/backend.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "starling/c10d/backend_test_ranks.h"
#include "starling/c10d/tensor_bytes.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kChar,
                                     at::kByte,  at::kShort,  at::kInt,      at::kLong};
constexpr c10d::ReduceOp::RedOpType kOps[] = {
    c10d::ReduceOp::SUM,     c10d::ReduceOp::AVG,  c10d::ReduceOp::MIN, c10d::ReduceOp::MAX,
    c10d::ReduceOp::PRODUCT, c10d::ReduceOp::BAND, c10d::ReduceOp::BOR, c10d::ReduceOp::BXOR};
// The types of operations that compute nothing.
constexpr at::ScalarType kMoved[] = {at::kFloat, at::kLong,          at::kBool,
                                     at::kShort, at::kComplexDouble, at::kFloat8_e4m3fn};

// Returns values of any type.
at::Tensor moved_values(int rank, int64_t count, at::ScalarType type) {
  return values(rank, count, at::kFloat).remainder(2).to(type);
}
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.flatten().view(at::kByte), b.flatten().view(at::kByte));
}
bool is_bitwise_op(c10d::ReduceOp::RedOpType op) {
  return op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
}

struct Case {
  int ranks;
  bool async;
};

void on_backends(int ranks, const std::function<void(StarlingBackend&)>& body) {
  run_ranks(ranks, [&](const ThreadRank& at) {
    const auto backend = c10::make_intrusive<StarlingBackend>(join_group(*at.store, at.rank, at.size));
    body(*backend);
  });
}

class BackendTest : public testing::TestWithParam<Case> {
 protected:
  void on_all(const std::function<void(StarlingBackend&)>& body) { on_backends(GetParam().ranks, body); }
  template <typename Options>
  Options options() const {
    return options_for<Options>(GetParam().async);
  }
};

// Compares the dtype and every element.
void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  ASSERT_TRUE(at::equal(got, want)) << what << "\ngot " << got.flatten().slice(0, 0, 8) << "\nwant "
                                    << want.flatten().slice(0, 0, 8);
}

TEST_P(BackendTest, AllReduceOfEveryTypeAndOperation) {
  on_all([&](StarlingBackend& backend) {
    int salt = 0;
    for (const auto type : kTypes) {
      for (const auto op : kOps) {
        if (is_bitwise_op(op) && at::isFloatingType(type)) continue;
        for (const int64_t count : {0, 1, 9001}) {
          Tensors tensors{values(backend.getRank(), count, type, ++salt)};
          auto options = this->options<c10d::AllreduceOptions>();
          options.reduceOp = op;
          backend.allreduce(tensors, options)->wait();
          const at::Tensor want = reduced(backend.getSize(), count, type, op, salt);
          if (op == c10d::ReduceOp::AVG &&
              at::isFloatingType(type)) {  // sum / n in fp32, or sum · (1/n): they differ by one rounding
            ASSERT_TRUE(at::allclose(tensors[0].to(at::kDouble), want.to(at::kDouble),
                                     type == at::kBFloat16 ? 8e-3 : 1e-3));
          } else {
            expect_same(tensors[0], want, fmt::format("{} {}", c10::toString(type), count));
          }
        }
      }
    }
  });
}

TEST_P(BackendTest, AllReduceOfLogicalValues) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    at::Tensor count = at::zeros({40}, at::kLong);  // number of ranks that have true
    const auto mine = [](int rank) { return (at::arange(40) * (rank + 3)).remainder(5).lt(2); };
    for (int r = 0; r < p; ++r) count += mine(r);
    using Op = c10d::ReduceOp;
    for (const auto& [op, want] :
         std::vector<std::pair<Op::RedOpType, at::Tensor>>{{Op::SUM, count.gt(0)},
                                                           {Op::MAX, count.gt(0)},
                                                           {Op::BOR, count.gt(0)},
                                                           {Op::PRODUCT, count.eq(p)},
                                                           {Op::MIN, count.eq(p)},
                                                           {Op::BAND, count.eq(p)},
                                                           {Op::BXOR, count.remainder(2).eq(1)}}) {
      Tensors tensors{mine(me)};
      auto options = this->options<c10d::AllreduceOptions>();
      options.reduceOp = op;
      backend.allreduce(tensors, options)->wait();
      expect_same(tensors[0], want, fmt::format("operation {}", static_cast<int>(op)));
    }
  });
}

// Each rank multiplies by its own factor, given as a number or as a tensor.
TEST_P(BackendTest, PremultipliedSums) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      at::Tensor want = at::zeros({p * 30}, at::kDouble);
      for (int r = 0; r < p; ++r) want += values(r, p * 30, at::kDouble) * (0.5 * (r + 1));
      auto reduce = options<c10d::AllreduceOptions>();
      reduce.reduceOp = c10d::makePreMulSum(0.5 * (me + 1));
      Tensors tensors{values(me, p * 30, type)};
      backend.allreduce(tensors, reduce)->wait();
      expect_same(tensors[0], want.to(type), "all_reduce");
      auto scatter = options<c10d::ReduceScatterOptions>();
      scatter.reduceOp = c10d::makePreMulSum(at::full({1}, 0.5 * (me + 1)));
      at::Tensor input = values(me, p * 30, type), part = at::zeros({30}, type);
      backend.reduce_scatter_single(part, input, scatter)->wait();
      expect_same(part, want.narrow(0, 30 * me, 30).to(type), "reduce_scatter");
      expect_same(input, values(me, p * 30, type), "the input stays");
    }
  });
}

TEST_P(BackendTest, AllReduceOfSparseTensors) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    // Rank r has r rows, some of them shared with other ranks; rank 0 has none.
    const auto rows = [](int rank) {
      at::Tensor dense = at::zeros({10, 3}, at::kDouble);
      for (int i = 0; i < rank; ++i) dense[(2 * i + rank) % 10].fill_(rank + i);
      return dense;
    };
    at::Tensor want = at::zeros({10, 3}, at::kDouble);
    for (int r = 0; r < p; ++r) want += rows(r);
    Tensors tensors{rows(me).to_sparse(1)};
    backend.allreduce(tensors, options<c10d::AllreduceOptions>())->wait();
    ASSERT_TRUE(tensors[0].is_sparse());
    expect_same(tensors[0].to_dense(), want, "sparse");
  });
}

// Moves tensors of types without a counterpart by broadcast, gathers, scatter, all-to-all, send and receive.
TEST_P(BackendTest, TensorsOfAnyTypeTravel) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank(), next = (me + 1) % p, previous = (me + p - 1) % p;
    for (const auto type : kMoved) {
      Tensors want;
      for (int r = 0; r < p; ++r) want.push_back(moved_values(r, 21, type));
      at::Tensor mine = want[me].clone(), flat = joined(want, type);
      Tensors tensors{mine.clone()};
      auto from = options<c10d::BroadcastOptions>();
      from.rootRank = p - 1;
      backend.broadcast(tensors, from)->wait();
      ASSERT_TRUE(same_bytes(tensors[0], want[p - 1])) << "broadcast " << type;
      at::Tensor all = at::zeros_like(flat);
      backend.all_gather_single(all, mine, options<c10d::AllgatherOptions>())->wait();
      ASSERT_TRUE(same_bytes(all, flat)) << "all_gather " << type;
      at::Tensor collected = at::zeros_like(flat);
      backend.gather_single(collected, mine, options<c10d::GatherOptions>())->wait();
      ASSERT_TRUE(me != 0 || same_bytes(collected, flat)) << "gather " << type;
      Tensors part{at::zeros_like(mine)};
      std::vector<Tensors> parts;
      if (me == 0) parts.push_back(want);
      backend.scatter(part, parts, options<c10d::ScatterOptions>())->wait();
      ASSERT_TRUE(same_bytes(part[0], mine)) << "scatter " << type;
      std::vector<int64_t> even;
      at::Tensor exchanged = at::zeros_like(flat);
      backend.all_to_all_single(exchanged, flat, even, even, options<c10d::AllToAllOptions>())->wait();
      ASSERT_TRUE(same_bytes(exchanged, joined(Tensors(p, mine), type))) << "all_to_all " << type;
      if (p == 1) continue;
      Tensors out{mine}, in{at::zeros_like(mine)};
      const auto sent = backend.send(out, next, 3);
      backend.recv(in, previous, 3)->wait();
      sent->wait();
      ASSERT_TRUE(same_bytes(in[0], want[previous])) << "recv " << type;
    }
  });
}

TEST_P(BackendTest, CoalescedForms) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    Tensors inputs{values(me, 7, at::kFloat), values(me, 1000, at::kHalf), values(me, 30, at::kBool)};
    Tensors flat;
    std::vector<Tensors> lists(p);
    for (const at::Tensor& input : inputs) {
      flat.push_back(at::zeros({p * input.numel()}, input.scalar_type()));
      for (auto& list : lists) list.push_back(at::zeros_like(input));
    }
    backend.allgather_into_tensor_coalesced(flat, inputs, options<c10d::AllgatherOptions>())->wait();
    backend.allgather_coalesced(lists, inputs, options<c10d::AllgatherOptions>())->wait();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t n = inputs[i].numel();
      for (int r = 0; r < p; ++r) {
        expect_same(flat[i].narrow(0, r * n, n), values(r, n, inputs[i].scalar_type()), "single");
        expect_same(lists[r][i], values(r, n, inputs[i].scalar_type()), "list");
      }
    }
    Tensors large{values(me, p * 5, at::kDouble), values(me, p * 600, at::kLong)};
    Tensors small{at::zeros({5}, at::kDouble), at::zeros({600}, at::kLong)};
    backend.reduce_scatter_tensor_coalesced(small, large, options<c10d::ReduceScatterOptions>())->wait();
    for (const at::Tensor& part : small) {
      const int64_t n = part.numel();
      expect_same(part, reduced(p, p * n, part.scalar_type(), c10d::ReduceOp::SUM).narrow(0, me * n, n),
                  "scattered");
    }
  });
}

TEST_P(BackendTest, AllReduceOfStridedTensorsAndLeaves) {
  on_all([&](StarlingBackend& backend) {
    const at::Tensor base = at::zeros({6, 10});
    Tensors tensors{base.t()};
    tensors[0].copy_(values(backend.getRank(), 60, at::kFloat).view({10, 6}));
    backend.allreduce(tensors, options<c10d::AllreduceOptions>())->wait();
    const at::Tensor want = reduced(backend.getSize(), 60, at::kFloat, c10d::ReduceOp::SUM).view({10, 6});
    expect_same(base.t(), want, "transposed");
    at::Tensor leaf = at::empty({4, 3, 5, 2}, at::MemoryFormat::ChannelsLast);
    leaf.copy_(values(backend.getRank(), 120, at::kFloat).view({4, 3, 5, 2}));
    leaf.requires_grad_();
    Tensors leaves{leaf};
    backend.allreduce(leaves, options<c10d::AllreduceOptions>())->wait();
    expect_same(leaf.detach(),
                reduced(backend.getSize(), 120, at::kFloat, c10d::ReduceOp::SUM).view({4, 3, 5, 2}), "leaf");
  });
}

TEST_P(BackendTest, AllReduceCoalesced) {
  on_all([&](StarlingBackend& backend) {
    Tensors tensors;
    for (const int64_t count : {3, 0, 1000, 7})
      tensors.push_back(values(backend.getRank(), count, at::kDouble));
    auto options = this->options<c10d::AllreduceCoalescedOptions>();
    options.reduceOp = c10d::ReduceOp::MAX;
    backend.allreduce_coalesced(tensors, options)->wait();
    for (const at::Tensor& t : tensors) {
      expect_same(t, reduced(backend.getSize(), t.numel(), at::kDouble, c10d::ReduceOp::MAX), "coalesced");
    }
  });
}

TEST_P(BackendTest, BroadcastAndReduceWithEveryRoot) {
  on_all([&](StarlingBackend& backend) {
    for (int root = 0; root < backend.getSize(); ++root) {
      for (const auto type : kTypes) {
        const at::Tensor mine = values(backend.getRank(), 300, type, root);
        Tensors tensors{mine.clone().view({20, 15}).t()};
        auto options = this->options<c10d::BroadcastOptions>();
        options.rootRank = root;
        backend.broadcast(tensors, options)->wait();
        expect_same(tensors[0], values(root, 300, type, root).view({20, 15}).t(), "broadcast");
        Tensors summed{mine.clone()};
        auto reduce = this->options<c10d::ReduceOptions>();
        reduce.rootRank = root;
        backend.reduce(summed, reduce)->wait();
        const bool is_root = backend.getRank() == root;
        expect_same(summed[0],
                    is_root ? reduced(backend.getSize(), 300, type, c10d::ReduceOp::SUM, root) : mine,
                    "reduce");
      }
    }
  });
}

TEST_P(BackendTest, AllGather) {
  on_all([&](StarlingBackend& backend) {
    for (const auto type : kTypes) {
      Tensors want;
      for (int r = 0; r < backend.getSize(); ++r) want.push_back(values(r, 501, type).view({3, 167}));
      Tensors inputs{values(backend.getRank(), 501, type).view({3, 167})};
      std::vector<Tensors> outputs(1);
      for (int r = 0; r < backend.getSize(); ++r) outputs[0].push_back(at::zeros({167, 3}, type).t());
      backend.allgather(outputs, inputs, options<c10d::AllgatherOptions>())->wait();
      for (int r = 0; r < backend.getSize(); ++r) expect_same(outputs[0][r], want[r], "list");
      at::Tensor all = at::zeros({backend.getSize() * 3, 167}, type);
      backend._allgather_base(all, inputs[0], options<c10d::AllgatherOptions>())->wait();
      expect_same(all, at::cat(want), "base");
    }
  });
}

TEST_P(BackendTest, ReduceScatter) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    for (const auto type : kTypes) {
      for (const auto op : kOps) {
        if (is_bitwise_op(op) && at::isFloatingType(type)) continue;
        if (op == c10d::ReduceOp::AVG && at::isFloatingType(type)) continue;  // rounding, as in all_reduce
        const at::Tensor want = reduced(p, p * 400, type, op).narrow(0, me * 400, 400);
        auto options = this->options<c10d::ReduceScatterOptions>();
        options.reduceOp = op;
        at::Tensor input = values(me, p * 400, type);
        at::Tensor out = at::zeros({400}, type);
        backend._reduce_scatter_base(out, input, options)->wait();
        expect_same(out, want, "base");
        std::vector<Tensors> inputs{input.chunk(p)};
        Tensors outputs{at::zeros({800}, type).slice(0, 0, 800, 2)};
        backend.reduce_scatter(outputs, inputs, options)->wait();
        expect_same(outputs[0], want, "list");
      }
    }
  });
}

TEST_P(BackendTest, GatherAndScatter) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank(), root = p - 1;
    std::vector<Tensors> collected;
    if (me == root) collected.emplace_back();
    for (int r = 0; me == root && r < p; ++r) collected[0].push_back(at::zeros({9}, at::kInt));
    Tensors mine{values(me, 9, at::kInt)};
    auto gather = options<c10d::GatherOptions>();
    gather.rootRank = root;
    backend.gather(collected, mine, gather)->wait();
    for (int r = 0; me == root && r < p; ++r) expect_same(collected[0][r], values(r, 9, at::kInt), "gather");
    auto scatter = options<c10d::ScatterOptions>();
    scatter.rootRank = root;
    Tensors part{at::zeros({9}, at::kInt)};
    backend.scatter(part, collected, scatter)->wait();
    expect_same(part[0], mine[0], "scatter returns what gather took");
  });
}

// Rank s sends s + 2 r + 1 rows to rank r, all with the value 10 s + r.
TEST_P(BackendTest, AllToAllWithUnevenSplits) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    Tensors sent, received, want;
    std::vector<int64_t> in_splits, out_splits;
    for (int r = 0; r < p; ++r) {
      in_splits.push_back(me + 2 * r + 1);
      out_splits.push_back(r + 2 * me + 1);
      sent.push_back(at::full({in_splits[r], 3}, 10 * me + r, at::kLong));
      want.push_back(at::full({out_splits[r], 3}, 10 * r + me, at::kLong));
      received.push_back(at::zeros_like(want[r]));
    }
    at::Tensor input = at::cat(sent), output = at::zeros_like(at::cat(want));
    backend.alltoall_base(output, input, out_splits, in_splits, options<c10d::AllToAllOptions>())->wait();
    expect_same(output, at::cat(want), "base");
    backend.alltoall(received, sent, options<c10d::AllToAllOptions>())->wait();
    for (int r = 0; r < p; ++r) expect_same(received[r], want[r], "list");
    at::Tensor even = at::full({2 * p}, me, at::kByte), got = at::zeros({2 * p}, at::kByte);
    std::vector<int64_t> none;
    backend.alltoall_base(got, even, none, none, options<c10d::AllToAllOptions>())->wait();
    expect_same(got, at::arange(p, at::kByte).repeat_interleave(2), "even");
  });
}

TEST_P(BackendTest, TensorsInTheGroupsWindows) {
  on_all([&](StarlingBackend& backend) {
    ASSERT_TRUE(backend.supportsTensorAlloc(-1));
    const at::Tensor inside = backend.allocateTensor(20000, at::kBFloat16);
    ASSERT_EQ(inside.scalar_type(), at::kBFloat16);
    ASSERT_TRUE(at::equal(inside, at::zeros({20000}, at::kBFloat16)));
    for (int round = 0; round < 5; ++round) {
      inside.copy_(values(backend.getRank(), 20000, at::kBFloat16, round));
      Tensors tensors{inside};
      backend.allreduce(tensors, options<c10d::AllreduceOptions>())->wait();
      expect_same(inside, reduced(backend.getSize(), 20000, at::kBFloat16, c10d::ReduceOp::SUM, round),
                  "window");
    }
  });
}

TEST_P(BackendTest, SendAndReceive) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<Tensors> in;
    // Posts the receives first, and those of the second tag before those of the first. No order of the calls
    // may block. Two messages exceed a ring buffer.
    for (const int tag : {2, 1}) {
      for (int r = 0; r < p; ++r) {
        if (r == me) continue;
        in.push_back({at::zeros({2, 15000}, at::kDouble).t()});
        works.push_back(backend.recv(in.back(), r, tag));
      }
    }
    for (const int tag : {1, 2}) {
      for (int r = 0; r < p; ++r) {
        Tensors out{values(me, 30000, at::kDouble, tag).view({15000, 2})};
        if (r != me) works.push_back(backend.send(out, r, tag));
      }
    }
    for (const auto& work : works) work->wait();
    size_t at = 0;
    for (const int tag : {2, 1}) {
      for (int r = 0; r < p; ++r) {
        if (r != me)
          expect_same(in[at++][0], values(r, 30000, at::kDouble, tag).view({15000, 2}), "received");
      }
    }
  });
}

// Starts thirty calls of several kinds at once. Each uses the result of the one before.
TEST_P(BackendTest, OperationsRunInTheOrderOfTheCalls) {
  on_all([&](StarlingBackend& backend) {
    const int p = backend.getSize(), me = backend.getRank();
    Tensors x{at::full({100}, me + 1, at::kDouble)};
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    double want = 0;
    for (int i = 0; i < 10; ++i) {
      works.push_back(backend.allreduce(x, options<c10d::AllreduceOptions>()));
      auto from = options<c10d::BroadcastOptions>();
      from.rootRank = i % p;
      works.push_back(backend.broadcast(x, from));
      works.push_back(backend.barrier(options<c10d::BarrierOptions>()));
      want = i == 0 ? p * (p + 1) / 2.0 : want * p;
    }
    EXPECT_EQ(works.back()->getSequencenumber(), 30);
    works.back()->wait();
    for (const auto& work : works) ASSERT_TRUE(work->isCompleted());
    expect_same(x[0], at::full({100}, want, at::kDouble), "after thirty calls");
    EXPECT_EQ(backend.getSequenceNumberForGroup(), 30);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BackendTest,
                         testing::Values(Case{1, true}, Case{2, true}, Case{2, false}, Case{3, true},
                                         Case{4, false}),
                         [](const auto& info) {
                           return fmt::format("{}{}", info.param.ranks, info.param.async ? "Async" : "Sync");
                         });

}  // namespace
}  // namespace starling
