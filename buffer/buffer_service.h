// The buffer's gRPC door (proto/buffer.proto), callback API: no call occupies a thread while it
// waits. Translates between messages and BufferCore. Thread-safe.
#ifndef MILLRACE_BUFFER_BUFFER_SERVICE_H_
#define MILLRACE_BUFFER_BUFFER_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "buffer/buffer_core.h"
#include "proto/buffer.grpc.pb.h"

namespace millrace {

class BufferService final : public v1::Buffer::CallbackService {
 public:
  struct Options {
    // A push stream is not read further while this much of it, or of all streams together, waits
    // for the disk; then gRPC's flow control holds the client back. One message is always taken.
    size_t max_stream_bytes = 8 << 20;
    size_t max_queued_bytes = 64 << 20;
  };
  // `core` must outlive the server that this is registered with.
  explicit BufferService(BufferCore* core) : BufferService(core, Options()) {}
  BufferService(BufferCore* core, Options options) : core_(core), options_(options) {}

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context,
                                  const v1::LeaseRequest* request, v1::LeaseReply* reply) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const v1::RenewRequest* request, v1::RenewReply* reply) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseReply* reply) override;
  grpc::ServerBidiReactor<v1::PushRequest, v1::PushReply>* Push(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::BatchPart>* NextBatch(grpc::CallbackServerContext* context,
                                                     const v1::NextBatchRequest* request) override;
  grpc::ServerUnaryReactor* Commit(grpc::CallbackServerContext* context,
                                   const v1::CommitRequest* request,
                                   v1::CommitReply* reply) override;
  grpc::ServerUnaryReactor* Rewind(grpc::CallbackServerContext* context,
                                   const v1::RewindRequest* request,
                                   v1::RewindReply* reply) override;
  grpc::ServerUnaryReactor* SetVersion(grpc::CallbackServerContext* context,
                                       const v1::SetVersionRequest* request,
                                       v1::SetVersionReply* reply) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request, v1::StatsReply* reply) override;

 private:
  BufferCore* const core_;
  const Options options_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_BUFFER_SERVICE_H_
