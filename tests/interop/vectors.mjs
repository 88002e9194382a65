// Checks tests/swarm/wire/vectors: `node vectors.mjs DIRECTORY`. Prints a JSON line, and fails at the first difference.

import assert from 'node:assert/strict'
import { createPrivateKey, sign } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import * as wire from './wire.mjs'
import { bytesOf, hex } from './wire.mjs'

const load = (name) => JSON.parse(readFileSync(join(process.argv[2], `${name}.json`), 'utf8'))
const recordOf = (vector) => ({ body: bytesOf(vector.body), signature: bytesOf(vector.signature) })
const hexRecords = (records) => records.map(({ body, signature }) => ({ body: hex(body), signature: hex(signature) }))
const decoders = { message: wire.decodeMessage, request: wire.decodeRequest, response: wire.decodeResponse }
const counts = {}

function each (name, check) {
  for (const vector of load(name)) {
    try {
      check(vector)
    } catch (error) {
      error.message = `${name}.json, ${vector.kind ?? ''} ${vector.name}: ${error.message}`
      throw error
    }
    counts[name] = (counts[name] ?? 0) + 1
  }
}

// RFC 8410: the header of an Ed25519 seed in PKCS #8.
function signWith (secret, data) {
  const der = Buffer.concat([bytesOf('302e020100300506032b657004220420'), bytesOf(secret)])
  return sign(null, data, createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }))
}

function judge (vector) {
  const record = recordOf(vector)
  const { swarm } = wire.decodeRecord(record)
  if (!wire.verified(record)) return 'signature'
  return hex(swarm) === vector.swarm ? null : 'swarm'
}

function reasonOf (vector) {
  try {
    if (vector.kind === 'record') return judge(vector)
    decoders[vector.kind](bytesOf(vector.data))
    return null
  } catch (error) {
    if (error instanceof wire.WireError) return error.reason
    throw error
  }
}

each('identities', (vector) => {
  assert.equal(wire.peerIdOf(bytesOf(vector.public_key)), vector.peer_id)
  assert.equal(hex(signWith(vector.secret, bytesOf('00ff'))), vector.signature_of_00ff)
})

each('swarms', (vector) => {
  const swarm = wire.swarmId(bytesOf(vector.manifest), vector.key === null ? null : bytesOf(vector.key))
  assert.equal(hex(swarm), vector.swarm)
  assert.equal(wire.topicOf(swarm), vector.topic)
})

each('rollouts', (vector) => {
  const record = recordOf(vector)
  const { rollout, swarm, publicKey } = wire.decodeRecord(record)
  assert.deepEqual(rollout, vector.rollout)
  assert.equal(hex(swarm), vector.swarm)
  assert.equal(hex(wire.digestOf(record)), vector.digest)
  assert.equal(hex(wire.signedBytes(record.body)), vector.signed)
  assert.ok(wire.verified(record))
  assert.equal(hex(signWith(vector.secret, bytesOf(vector.signed))), vector.signature)
  assert.equal(hex(wire.encodeBody(rollout, swarm, publicKey)) === vector.body, vector.canonical)
})

each('messages', (vector) => {
  for (const form of ['plain', 'compressed']) {
    const { swarm, records, announced } = wire.decodeMessage(bytesOf(vector[form]))
    assert.equal(hex(swarm), vector.swarm)
    assert.deepEqual(hexRecords(records), vector.rollouts)
    assert.deepEqual(announced.map(hex), vector.announced)
    assert.deepEqual(wire.decodeMessage(wire.encodeMessage(swarm, records, announced)), { swarm, records, announced })
  }
})

each('requests', (vector) => {
  const request = wire.decodeRequest(bytesOf(vector.data))
  assert.equal(request.kind, vector.kind)
  assert.deepEqual((request.digests ?? []).map(hex), vector.digests)
  assert.equal(hex(request.swarm ?? []), vector.swarm)
  assert.equal(request.count ?? 0, vector.count)
  assert.equal(request.offset ?? 0, vector.offset)
  assert.equal(hex(wire.frame(wire.encodeRequest(request))), vector.frame)
})

each('responses', (vector) => {
  const { records, manifest, piece } = wire.decodeResponse(bytesOf(vector.data))
  assert.deepEqual(hexRecords(records), vector.rollouts)
  assert.equal(manifest === null ? null : hex(manifest), vector.manifest)
  assert.equal(hex(piece ?? []), vector.piece)
  let encoded = vector.name.endsWith('manifest') ? wire.encodeManifestResponse(manifest) : wire.encodeResponse(records)
  if (piece !== undefined) encoded = wire.encodePieceResponse(piece)
  assert.equal(hex(wire.frame(encoded)), vector.frame)
})

each('invalid', (vector) => assert.equal(reasonOf(vector), vector.reason))

console.log(JSON.stringify({ checked: counts }))
