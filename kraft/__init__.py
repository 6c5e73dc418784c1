"""The cluster's metadata: records, image, controllers and the Raft quorum that orders them."""
