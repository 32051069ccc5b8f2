// The meshes of this process, which Python makes and kernels find by a number.

#ifndef TERNGRAD_CC_NET_MESH_REGISTRY_H_
#define TERNGRAD_CC_NET_MESH_REGISTRY_H_

#include <cstdint>
#include <memory>

#include "terngrad/cc/net/mesh.h"

namespace terngrad {

// Returns null if there is none of this number, or it is closed.
std::shared_ptr<Mesh> FindMesh(int64_t mesh);

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_MESH_REGISTRY_H_
