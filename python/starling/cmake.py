"""Prints the folder of the CMake package's prefix: cmake -DCMAKE_PREFIX_PATH=$(python -m starling.cmake)."""
from starling import cmake_prefix

if __name__ == "__main__":
    print(cmake_prefix())
