// The first inputs of the fuzzers of files: whole files, made by our writers or by the formats' own
// libraries.
#include <archive.h>
#include <archive_entry.h>
#include <spng.h>
#include <turbojpeg.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "starling/base/read_file.h"
#include "starling/comm/recorder/flight_recorder.h"
#include "starling/compress/compressed_file.h"
#include "starling/data/formats/idx.h"
#include "starling/weights/weights_file.h"
#include "tests/fuzz/corpus.h"

namespace starling {
namespace {

std::string gzipped(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\1');
}

void safetensors_seeds(const std::filesystem::path& root) {
  Corpus files(root, "safetensors");
  files.add(safetensors("{}", 0));
  files.add(safetensors(R"({"x":[0]})", 0));               // found
  files.add(safetensors(std::string("{}\0 rest", 8), 0));  // found
  files.add(safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  files.add(safetensors(
      R"({"__metadata__":{"format":"pt"},"fc.bias":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
      R"("fc.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}})",
      20));
  files.add(safetensors(
      R"({"e":{"dtype":"BOOL","shape":[0,4],"data_offsets":[0,0]},"i":{"dtype":"I64","shape":[1],)"
      R"("data_offsets":[0,8]},"u":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}     )",
      11));
  Corpus archives(root, "pt");
  const auto source = [](const char* name, weights::Dtype dtype, std::vector<int64_t> shape) {
    return weights::Source{name, dtype, std::move(shape), [] { return "bytes of a tensor that has 24"; }};
  };
  const std::vector<weights::Source> sources = {source("fc.weight", weights::Dtype::kF32, {2, 3}),
                                                source("n", weights::Dtype::kI64, {})};
  std::string archive;
  weights::write_pt(
      [&](const void* bytes, size_t size) { archive.append(static_cast<const char*>(bytes), size); },
      sources);
  archives.add(archive);
  archives.add(weights::detail::pickle_of(sources));
  // As PyTorch writes {"model": OrderedDict(a=Parameter(t), b=t[1:]), "step": 3, "lr": [0.1, None], "x":
  // (True,)}.
  const std::string tensor = "ctorch._utils\n_rebuild_tensor_v2\nq\x03((X\7" + std::string(3, '\0') +
                             "storageq\x04"
                             "ctorch\nFloatStorage\nq\x05X\1" +
                             std::string(3, '\0') + "0X\3" + std::string(3, '\0') +
                             "cpuK\x06tq\x08QK\1K\2K\2\x86q\x09K\3K\1\x86\x89h\x01)RtR";
  archives.add(
      "\x80\x02}q\x06(\x8c\x05modelccollections\nOrderedDict\nq\x01)Rq\x02(\x8c\x01"
      "a"
      "ctorch._utils\n" +
      ("_rebuild_parameter\n(" + tensor) +
      "\x88h\1)RtR\x8c\1bh\3((h\4h\5\x8c\1"
      "1\x8c\3"
      "cpuK\x02tQK\1K\1\x85K\1\x85" +
      "\x89h\1)RtRu}\x8c\x09_metadatah\1)Rsb\x8c\4stepK\3\x8c\2lr](G?"
      "\xb9\x99\x99\x99\x99\x99\x9aNe\x8c\1x\x88\x85u.");
  Corpus index(root, "index");
  index.add(
      R"({"metadata":{"total_size":28},"weight_map":{"a":"m-00001-of-00002.safetensors","b":"m-00002-of-00002.safetensors"}})");
  index.add(R"({"weight_map":{}})");
}

// Inputs of compressed_fuzz.cc, which appends the checksum: a whole file, and files without their checksums.
void compressed_seeds(const std::filesystem::path& root) {
  Corpus corpus(root, "compressed");
  CompressedTensor bias{.name = "fc.bias", .dtype = weights::Dtype::kF16, .shape = {10}};
  bias.values.assign(bias.bytes(), std::byte{1});
  CompressedTensor weight{.name = "fc.weight", .shape = {10, 90}, .clustered = true};
  weight.values.assign(4 * 6, std::byte{2});
  for (uint64_t i = 0; i < 40; ++i) {
    weight.positions.push_back(i * i / 2 + i);
    weight.clusters.push_back(static_cast<uint16_t>(i * i % 6));
  }
  corpus.add(text_of(write_compressed({bias, weight})));
  for (const int bits : {1, 3, 8}) {
    weight.index_bits = bits;
    const std::string file = text_of(write_compressed({weight, bias}));
    corpus.add(file.substr(0, file.size() - 8));
  }
}

void manifest_seeds(const std::filesystem::path& root) {
  Corpus corpus(root, "manifest");
  const auto entry = [](const std::string& name, const std::string& content) {
    const XXH128_hash_t hash = XXH3_128bits(content.data(), content.size());
    return fmt::format(R"("{}":{{"bytes":{},"xxh3":"{:016x}{:016x}"}})", name, content.size(), hash.high64,
                       hash.low64);
  };
  const std::string files = entry("state.json", "{}\n") + "," + entry("model.safetensors", "model");
  corpus.add(R"({"format":"starling-checkpoint","version":1,"files":{)" + files + "}}");
  corpus.add(R"({"format":"starling-checkpoint","version":2,"lineage":["0123456789abcdef"],"files":{)" +
             files + "}}");
  corpus.add(R"({"format":"starling-checkpoint","version":1,"files":{"gone":{"bytes":1,"xxh3":"00"}}})");
}

void idx_seeds(const std::filesystem::path& root, const std::filesystem::path& folder) {
  Corpus corpus(root, "idx");
  write_idx_images(folder / "images", {4, 3, std::vector<uint8_t>(24, 7)});
  write_idx_labels(folder / "labels", {1, 2, 3});
  for (const int kind : {0, 1}) {
    const std::string file = read_file((folder / (kind == 0 ? "images" : "labels")).string()).text;
    corpus.add(bytes_of({kind}) + file);
    corpus.add(bytes_of({kind}) + gzipped(file));
  }
}

// Inputs of topics_fuzz.cc: a byte for the kind, two for the rank, and a file.
void topics_seeds(const std::filesystem::path& root) {
  Corpus corpus(root, "topics");
  corpus.add(bytes_of({0, 0, 0}) + "3\n4\n4\n1 1 2\n1 4 1\n3 2 1\n2 2 0\n");
  corpus.add(bytes_of({0, 2, 1}) + "1099511627776\r\n7\n2\n\n 1\t1 2 \n1099511627776 7 9999\n");
  corpus.add(bytes_of({0, 0, 0}) + "2\n4\n1\n1-1 3\n");  // found by reading
  corpus.add(bytes_of({0, 0, 0}) + "1\n1\n1\n1 1 2147483647\n");
  const auto phi = [](const std::string& shape, std::initializer_list<float> values) {
    const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n";
    std::string file = std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header;
    for (const float value : values) file.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return bytes_of({1, 0, 0}) + file;
  };
  corpus.add(phi("(3, 2)", {0.5F, 0, 0.25F, 0, 0.25F, 1}));
  corpus.add(phi("(1, 1)", {1}));
  corpus.add(phi("(1, 1, 1)", {1}));
}

// Inputs of npy_fuzz.cc: the column of y, ranks, this rank, and a file.
void npy_seeds(const std::filesystem::path& root) {
  Corpus corpus(root, "npy");
  for (const auto& [type, bytes] : {std::pair{"<f8", 8}, {"<f4", 4}}) {
    std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (3, 2), }";
    header.resize(117, ' ');
    const std::string file = std::string("\x93NUMPY\x01\x00", 8) + bytes_of({118, 0}) + header + "\n" +
                             std::string(static_cast<size_t>(6 * bytes), '\x3f');
    for (const int ranks : {1, 2}) corpus.add(bytes_of({ranks - 1, ranks - 1, 0}) + file);
  }
  corpus.add(bytes_of({0, 0, 0}) + "a,b,y\n1,2,3\n4,5,6.5\n");
}

void cifar_seeds(const std::filesystem::path& root) {
  Corpus corpus(root, "cifar");
  std::string names;
  for (const char* name :
       {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"})
    names += std::string(name) + "\n";
  const auto with_names = [&](int kind) { return bytes_of({kind, static_cast<int>(names.size())}) + names; };
  corpus.add(with_names(0) + std::string(3073, '\3'));
  corpus.add(with_names(0) + gzipped(std::string(3073, '\3') + std::string(3073, '\4')));
  corpus.add(with_names(1) + std::string(3074, '\5'));
}

std::string archived(bool gzip, bool pax) {
  struct archive* out = archive_write_new();
  if (gzip) archive_write_add_filter_gzip(out);
  pax ? archive_write_set_format_pax(out) : archive_write_set_format_ustar(out);
  archive_write_set_bytes_per_block(out, 512);
  std::string bytes(1 << 16, '\0');
  size_t used = 0;
  archive_write_open_memory(out, bytes.data(), bytes.size(), &used);
  const std::pair<const char*, std::string> files[] = {{"train/", ""},
                                                       {"train/cat/1.png", std::string(20, 'c')},
                                                       {"./train/dog/2.png", std::string(700, 'd')}};
  for (const auto& [name, content] : files) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, content.empty() ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    archive_write_header(out, entry);
    archive_write_data(out, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_close(out);
  archive_write_free(out);
  bytes.resize(used);
  return bytes;
}

std::string jpeg(int side, int sampling) {
  std::vector<uint8_t> rgb(static_cast<size_t>(3 * side * side));
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(i * 5);
  tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  tjCompress2(handle, rgb.data(), side, 0, side, TJPF_RGB, &out, &size, sampling, 80, 0);
  std::string bytes(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  return bytes;
}

std::string png(uint32_t side, uint8_t color_type, size_t channels) {
  spng_ctx* png = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(png, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = header.height = side;
  header.bit_depth = 8;
  header.color_type = color_type;
  spng_set_ihdr(png, &header);
  const std::vector<uint8_t> pixels(side * side * channels, 9);
  spng_encode_image(png, pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  size_t size = 0;
  int error = 0;
  void* out = spng_get_png_buffer(png, &size, &error);
  std::string bytes(static_cast<char*>(out), size);
  std::free(out);
  spng_ctx_free(png);
  return bytes;
}

// Inputs of recorder_fuzz.cc: whole or cut, header, names, and records with their places.
void recorder_seeds(const std::filesystem::path& root, const std::filesystem::path& folder) {
  Corpus corpus(root, "recorder");
  std::string both;
  for (const int rank : {0, 1}) {
    const std::filesystem::path path = recorder_file(folder, rank);
    {
      FlightRecorder recorder(path, rank, 2, "node");
      const int world = recorder.add_group("world");
      recorder.end(recorder.begin(world, {.kind = CollectiveKind::kAllReduce, .bytes = 64, .sequence = 1}),
                   false);
      recorder.begin(
          world,
          {.kind = CollectiveKind::kAllReduce, .bytes = 64, .sequence = static_cast<uint64_t>(2 + rank)});
      recorder.begin_wait(world, 1 - rank, 3, 5);
    }
    const std::string file = read_file(path.string()).text;
    const size_t names = offsetof(RecorderHeader, names);
    both += bytes_of({0, 120}) + file.substr(8, 128) + bytes_of({16}) + file.substr(names, 16);
    for (int at = 1; at <= 3; ++at)
      both += bytes_of({at}) +
              file.substr(sizeof(RecorderHeader) + static_cast<size_t>(at) * sizeof(Record), sizeof(Record));
    corpus.add(both);
  }
}

}  // namespace

void file_seeds(const std::filesystem::path& root) {
  std::string pattern = (std::filesystem::temp_directory_path() / "seeds-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  const std::filesystem::path folder = pattern;
  safetensors_seeds(root);
  compressed_seeds(root);
  manifest_seeds(root);
  idx_seeds(root, folder);
  npy_seeds(root);
  topics_seeds(root);
  cifar_seeds(root);
  Corpus tar(root, "tar");
  for (const bool gzip : {false, true}) {
    for (const bool pax : {false, true}) tar.add(archived(gzip, pax));
  }
  Corpus image(root, "image");
  for (const std::string& file : {jpeg(8, TJSAMP_444), jpeg(17, TJSAMP_420), jpeg(8, TJSAMP_GRAY)})
    image.add(bytes_of({1, 7, 7}) + file);
  image.add(bytes_of({1, 4, 7}) + png(8, SPNG_COLOR_TYPE_TRUECOLOR, 3));
  image.add(bytes_of({0, 4, 7}) + png(5, SPNG_COLOR_TYPE_GRAYSCALE, 1));
  image.add(bytes_of({1, 4, 7}) + png(6, SPNG_COLOR_TYPE_TRUECOLOR_ALPHA, 4));
  Corpus text(root, "text");
  text.add(bytes_of({3, 1, 1}) +
           "The Fox – 狐 – jumps 🦊 over it.\nAgain and again, and again, and again.\n");
  text.add(bytes_of({7, 0, 0}) + gzipped("plain words in a gzip file\n"));
  recorder_seeds(root, folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace starling
