# Finds the distribution's packages that Starling's layers link. The installed CMake package also includes
# this file.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(libarchive REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(turbojpeg REQUIRED IMPORTED_TARGET libturbojpeg)
pkg_check_modules(spng REQUIRED IMPORTED_TARGET spng)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
