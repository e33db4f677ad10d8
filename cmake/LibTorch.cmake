# millrace::torch: LibTorch from the wheel that scripts/setup unpacked into MILLRACE_DEPS_DIR.
#
# find_package(Torch) is not used: it turns CUDA language detection on, and the wheel's include folder holds an old
# google/protobuf and a newer fmt that would shadow the system's. So the include folder is one of links to everything
# but those two.
set(torch_root ${MILLRACE_DEPS_DIR}/torch)
set(nvidia_lib ${MILLRACE_DEPS_DIR}/nvidia/cu13/lib)
if(NOT EXISTS ${torch_root}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found: ${torch_root}/lib/libtorch_cpu.so is missing. Run scripts/setup first "
                      "(make does), or set MILLRACE_DEPS_DIR.")
endif()
set(torch_include ${MILLRACE_DEPS_DIR}/torch_include)
file(MAKE_DIRECTORY ${torch_include})
file(GLOB entries RELATIVE ${torch_root}/include ${torch_root}/include/*)
list(REMOVE_ITEM entries google fmt)
file(REMOVE ${torch_include}/google ${torch_include}/fmt)
foreach(entry ${entries})
  if(NOT EXISTS ${torch_include}/${entry})
    file(CREATE_LINK ${torch_root}/include/${entry} ${torch_include}/${entry} SYMBOLIC)
  endif()
endforeach()

add_library(millrace_torch INTERFACE)
add_library(millrace::torch ALIAS millrace_torch)
target_include_directories(millrace_torch SYSTEM INTERFACE
  ${torch_include} ${torch_include}/torch/csrc/api/include)
target_link_libraries(millrace_torch INTERFACE
  ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so ${torch_root}/lib/libgomp.so.1)
# The wheel's libraries find their own neighbours by RUNPATH only from within Python's layout.
target_link_options(millrace_torch INTERFACE
  -Wl,-rpath,${torch_root}/lib -Wl,-rpath,${nvidia_lib}
  -Wl,-rpath-link,${torch_root}/lib -Wl,-rpath-link,${nvidia_lib} -Wl,--disable-new-dtags
  -Wl,--unresolved-symbols=ignore-in-shared-libs)
if(MILLRACE_CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)
  # --no-as-needed: nothing names a symbol of libtorch_cuda, which registers its kernels when it is loaded.
  target_link_libraries(millrace_torch INTERFACE
    -Wl,--no-as-needed ${torch_root}/lib/libtorch_cuda.so -Wl,--as-needed
    ${torch_root}/lib/libc10_cuda.so CUDA::cudart)
  target_compile_definitions(millrace_torch INTERFACE MILLRACE_WITH_CUDA=1 USE_C10D_NCCL=1)
  target_include_directories(millrace_torch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
endif()
