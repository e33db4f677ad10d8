# millrace::nccl: NCCL of the CUDA toolkit, for weight_sync/nccl_transport.cc alone. Without MILLRACE_CUDA the
# no_nccl_transport.cc stub is built and nothing is linked.
if(MILLRACE_CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
  add_library(millrace_nccl INTERFACE)
  add_library(millrace::nccl ALIAS millrace_nccl)
  target_include_directories(millrace_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(millrace_nccl INTERFACE ${NCCL_LIBRARY} CUDA::cudart)
endif()
