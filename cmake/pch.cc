// The precompiled header is built with this file; see cmake/starling_layer.cmake.
