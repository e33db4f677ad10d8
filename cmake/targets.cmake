# millrace_library(NAME n SRCS ... DEPS ...)   a static library millrace_<n>, alias millrace::<n>
# millrace_binary(NAME n SRCS ... DEPS ...)    a program called n
# millrace_test(NAME n SRCS ... DEPS ... [LABELS ...] [TIMEOUT s])   a GoogleTest program, one ctest entry
# millrace_proto(NAME n PROTOS ...)            C++ and gRPC code for .proto files, as millrace::<n>

add_library(millrace_options INTERFACE)
target_include_directories(millrace_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(millrace_options INTERFACE -Wall -Wextra -Werror -Wno-unused-parameter
                                                  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(millrace_options INTERFACE -Wthread-safety)
else()
  # GCC 12 reports these inside std::string and std::optional of its own headers.
  target_compile_options(millrace_options INTERFACE -Wno-restrict -Wno-maybe-uninitialized
                                                    -Wno-stringop-overflow -Wno-array-bounds)
endif()
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()
# Every program of the tsan preset has this source: see there.
set(MILLRACE_PROGRAM_SRCS)
if(MILLRACE_SANITIZE MATCHES thread)
  set(MILLRACE_PROGRAM_SRCS ${CMAKE_SOURCE_DIR}/tests/testing/tsan_absl.cc)
endif()
if(MILLRACE_FUZZ)
  target_compile_options(millrace_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(millrace_library)
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(millrace_${A_NAME} STATIC ${A_SRCS})
  add_library(millrace::${A_NAME} ALIAS millrace_${A_NAME})
  target_link_libraries(millrace_${A_NAME} PUBLIC ${A_DEPS} PRIVATE millrace_options)
  target_include_directories(millrace_${A_NAME} PUBLIC ${CMAKE_SOURCE_DIR})
endfunction()

function(millrace_binary)
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS} ${MILLRACE_PROGRAM_SRCS})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} millrace_options)
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

function(millrace_test)
  if(NOT MILLRACE_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS} ${MILLRACE_PROGRAM_SRCS})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} millrace_options GTest::gmock GTest::gtest_main)
  target_compile_definitions(${A_NAME} PRIVATE
    MILLRACE_GOLDEN_DIR="${CMAKE_SOURCE_DIR}/tests/golden" MILLRACE_BIN_DIR="${CMAKE_BINARY_DIR}/bin"
    MILLRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${A_NAME} COMMAND ${A_NAME})
  if(MILLRACE_SANITIZE MATCHES thread)
    set_tests_properties(${A_NAME} PROPERTIES ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/testing/tsan.supp ignore_noninstrumented_modules=1 second_deadlock_stack=1")
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_tests_properties(${A_NAME} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
endfunction()

function(millrace_proto)
  cmake_parse_arguments(A "" "NAME" "PROTOS" ${ARGN})
  set(out ${CMAKE_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${out})
  set(srcs)
  foreach(proto ${A_PROTOS})
    cmake_path(GET proto STEM stem)
    set(gen ${out}/proto/${stem}.pb.cc ${out}/proto/${stem}.pb.h
            ${out}/proto/${stem}.grpc.pb.cc ${out}/proto/${stem}.grpc.pb.h)
    set(all)
    foreach(p ${A_PROTOS})
      list(APPEND all ${CMAKE_SOURCE_DIR}/proto/${p})
    endforeach()
    add_custom_command(OUTPUT ${gen}
      COMMAND protobuf::protoc --proto_path=${CMAKE_SOURCE_DIR} --cpp_out=${out} --grpc_out=${out}
              --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> proto/${proto}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DEPENDS ${all} VERBATIM)
    list(APPEND srcs ${gen})
  endforeach()
  add_library(millrace_${A_NAME} STATIC ${srcs})
  add_library(millrace::${A_NAME} ALIAS millrace_${A_NAME})
  target_include_directories(millrace_${A_NAME} SYSTEM PUBLIC ${out})
  target_link_libraries(millrace_${A_NAME} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
  if(MILLRACE_SANITIZE)
    target_compile_options(millrace_${A_NAME} PRIVATE -fsanitize=${MILLRACE_SANITIZE})
  endif()
endfunction()
